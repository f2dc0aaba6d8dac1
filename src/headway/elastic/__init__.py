"""Runs that go on when ranks are lost, and take back those that are started again."""

from headway.elastic.meetings import Meeting, Meetings
from headway.elastic.starting import init_process_group

__all__ = ["Meeting", "Meetings", "init_process_group"]
