"""Tables of Delta that flows write.

- `tables`: a batch in one commit, MERGE, writers that were overtaken
- `contracts`: what happens where rows have other columns than their table
- `expectations`: rules of rows, and quarantine
- `changes`: change data into tables, SCD types 1 and 2
"""
