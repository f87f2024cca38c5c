"""Tests of reading and writing the files of other frameworks."""
