"""The commands that need no project: `kalda pipeline load | derive | snapshot | redrive-topic | replay`. All but
`replay` write one.

- `generated`: a project that a command has written, and its directory
- `load`: topics into a table
- `derive`: a file of topics, tables and queries as a project
- `snapshot`: the latest value of each key of a topic as a table
- `redriven_letters`: dead letters again to the topics that they come from
- `conversion`: what earlier versions have made, as projects
- `replay`: a table or files into a topic, in order
"""
