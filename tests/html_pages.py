"""What is in a page of HTML."""

import html.parser


class Links(html.parser.HTMLParser):
    """Every element, every address, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)
        named = {"src", "href", "srcset", "data", "action", "poster", "background"}
        self.addresses += [value or "" for name, value in attributes if name in named]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
