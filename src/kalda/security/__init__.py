"""Who may do what: the decisions of an authorizer over the access control entries of the metadata.

The floor holds no socket and no clock, and depends on no handler: an API's checks are in `kalda.protocol.access`.

- `acl_index`: entries by the resource that they apply to
- `custom_authorizer`: an operator's own class in place of the entries
- `explaining`: why a request is allowed or denied, as JSON
- `standard_authorizer`: Kafka's StandardAuthorizer
"""
