"""The dashboard: a page that shows the cluster with the public HTTP API, and its files.

`static/` has plain ES modules and CSS, which are served as they are. Start reading at
`static/js/main.js`.
"""
