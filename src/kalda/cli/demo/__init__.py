"""`kalda demo`: a story of orders that shows what Kalda does, and proves it at the end.

Three nodes on this machine keep the topic `orders`; a group of two reads them and writes a bill for each, in
transactions; one member and one node are killed; Spark keeps a table of windows, and at the end a lake. Each part is a
process of its own and uses Kalda as any program would.

- `command`: the command, and what it prints
- `story`: the steps, each with the condition that ends it
- `scene`: the processes of a run, and their reports; threads that read the lag, the leaders and the table of windows
- `children`: a process that reports lines of JSON, from both sides
- `shop`: the process that makes orders
- `member`: the process of a member of the group
- `windows`: the process of Spark: the table of windows, then the lake
- `nodes`: the three nodes
- `recording`: what has happened so far, as values over time
- `screen`: the recording on a terminal, or as plain lines
- `proof`: that every order is everywhere exactly once
- `picture`: the values and marks of the picture; it as PNG, and as a page, `page.html`, that replays the run
"""
