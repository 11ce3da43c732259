"""What `btil collect` serves: the participants' pages, the researcher's, and the replay."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from btil.study.keeping import read_key
from btil.study.live import LiveStudy, sole_server
from btil.study.replay import replay_routes
from btil.study.server import (
    Keyed,
    address_of,
    listen_on,
    make_app,
    overview_routes,
    participant_routes,
    serve,
    ticking,
)
from btil.study.settings import SETTINGS_FILE, read_settings, write_defaults
from btil.study.store import Store


def collect(
    folder: Path,
    host: str,
    port: int,
    teammate: str | None,
    origin: str | None,
    forwarded: str | None,
    seed: int | None,
    tell: Callable[[str], None],
) -> None:
    """Serve a study until interrupted; see `btil collect`."""
    for file in write_defaults(folder):
        tell(f"wrote {file}")
    settings = read_settings(folder / SETTINGS_FILE, teammate)
    with contextlib.suppress(OSError):  # another one's folder, or no such modes here
        folder.chmod(0o700)
    with sole_server(folder), listen_on(host, port) as listener:
        address = address_of(host, listener.getsockname()[1], origin)
        study = LiveStudy(Store(folder, seed, create=True), settings, folder)
        try:
            tell("planning for the tasks (some seconds the first time)")
            study.prepare()
            keyed = Keyed(f"btil_key_{study.name}", address, read_key(folder))
            routes = [
                *participant_routes(study, address, folder),
                *overview_routes(study, keyed),
                *replay_routes(folder, [], keyed, "/replay"),
            ]
            tell(f"participants   {address.url}/")
            tell(f"researcher     {keyed.link('/researcher')}")
            tell("stop with Ctrl-C; the same command takes the study up again")
            serve(make_app(routes, address, ticking(study)), listener, forwarded)
        finally:
            study.close()
