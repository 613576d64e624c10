"""Tables of Delta that flows write.

- `tables`: a batch in one commit, MERGE, writers that were overtaken
- `contracts`: what is asked of rows: columns that fit their table, and rules that hold; quarantine
- `changes`: change data into tables, SCD types 1 and 2
"""
