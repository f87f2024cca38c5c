"""Reports: answers of simgpt read from files, drawn, and put on one page."""
