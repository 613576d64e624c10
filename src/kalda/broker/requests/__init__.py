"""From a frame to an answer: decode, authorize, charge, handle, encode, as the API's row says.

- `pipeline`: from a frame to an answer, through the stages of the API's row
- `rows`: a row an API: handler, authorization, quota, failure
- `context`: what a handler receives and may return
- `api_versions`: ApiVersions, which announces exactly the rows
- `node_authorizer`: the authorizer of a node, fed by the metadata
- `quotas`: a node's client quotas, fed by the metadata
- `charging`: the stage of the pipeline that charges answers to quotas
- `throttling`: what the requests of one kind of listener are charged to, and its metrics
"""
