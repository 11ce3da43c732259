"""The study page: people play in a browser, with an AI or each other, and say what they want.

`btil collect` serves it. `settings.py` reads what the researcher writes; `worlds.py` says what is
special to each task; `episode.py`, `tutorial.py` and `sessions.py` are the rules of play without
any input or output; `texts.py` has the words and `views.py` is what a participant sees; `store.py`
keeps it on disk; `live.py`, `server.py` and `serving.py` bring the two together over HTTP;
`export.py`, `keeping.py` and `replay.py` are for the researcher.
"""
