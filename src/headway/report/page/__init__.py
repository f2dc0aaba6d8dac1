"""The page of a report: figures as data, and one file of HTML to show them in."""

from headway.report.page.document import write_page
from headway.report.page.summary import Summary, summarise

__all__ = ["Summary", "summarise", "write_page"]
