"""The page of a report: figures as data, in one self-contained HTML file."""

from headway.report.page.document import write_page
from headway.report.page.summary import Summary, summarise

__all__ = ["Summary", "summarise", "write_page"]
