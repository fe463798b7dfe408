"""Reports on a run: the page, the timeline and the tables, made from a trace of either mode."""
