"""`pencil serve`: runs behind the HTTP interface that the clients of OpenAI speak.

`engine.py` generates many texts at once over one preallocated cache (`tile.py` is its batch of fixed size,
`row_sampling.py` the choice of each row's next token); `worker.py` is the thread in which all models compute; `app.py`
has the routes, `openai_format.py` the requests and answers, `chat.py` the templates, `metrics.py` the counters.
"""
