"""`kalda` on the command line: one file a noun.

It knows how to ask and how to show; what is asked is the business of the client, what is run of the broker.

- `main.py`: the entry; `server` goes its own way, without a command-line library
- `server.py`: run a node
- `storage.py`: format log directories, and look at them
"""
