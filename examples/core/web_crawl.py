"""A web crawl over local files: pages are fetched in parallel, links are followed once, and the site is indexed.

Shows work of which nobody knows beforehand how much there is: each result brings new tasks, `wait` takes the first
that is ready, a bounded number is under way. Broken links are exceptions in tasks, and the crawl goes on. It is
breadth first, so that it finds the same depths whatever comes first: levels are finished one after the other.

    python examples/core/web_crawl.py --pages 60
    dualray run examples/core/web_crawl.py --mode sim --nodes 3 -- --at-once 12
"""

import random
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import click

import dualray as ray


class Page(HTMLParser):
    """What a crawler wants to know of a page: links and words."""

    def __init__(self, text):
        super().__init__()
        self.links = []
        self.words = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.links += [value for name, value in attributes if name == "href"]

    def handle_data(self, data):
        self.words += data.split()


@ray.remote(max_retries=0)
def fetch(root, url):
    """Links and words of a page; FileNotFoundError for a broken link."""
    page = Page((Path(root) / url).read_text(encoding="utf-8"))
    return page.links, page.words


@ray.remote(num_cpus=0)
class Index:
    """Which pages have a word."""

    def __init__(self):
        self.pages = {}

    def add(self, url, words):
        for word in words:
            self.pages.setdefault(word, set()).add(url)

    def search(self, word):
        return sorted(self.pages.get(word, ()))


def crawl(root, start, index, at_once):
    """How far each page is from the first one, in links; and links that lead nowhere."""
    depths, broken = {start: 0}, set()
    level, depth = [start], 0
    while level:
        depth += 1
        following = set()
        waiting, under_way = list(level), {}
        while waiting or under_way:
            while waiting and len(under_way) < at_once:
                url = waiting.pop()
                under_way[fetch.remote(root, url)] = url
            [done], _ = ray.wait(list(under_way))
            url = under_way.pop(done)
            try:
                links, words = ray.get(done)
            except FileNotFoundError:  # the task's own exception, by its own type
                broken.add(url)
                continue
            index.add.remote(url, words)
            following.update(link for link in links if link not in depths)
        level = sorted(following)
        depths.update(dict.fromkeys(level, depth))
    return {url: depth for url, depth in depths.items() if url not in broken}, broken


def write_site(root, pages):
    """A site that is made up, the same one each time; each tenth page has a link to a page that is not there."""
    generator = random.Random(2009)
    for number in range(pages):
        links = [f"page-{generator.randrange(pages)}.html" for _ in range(3)]
        links += [f"gone-{number}.html"] if number % 10 == 0 else []
        words = " ".join(generator.choices(["ant", "bee", "cat", "dog", "eel", "fox"], k=3))
        text = "".join(f"<p><a href='{link}'>more</a></p>" for link in links)
        Path(root, f"page-{number}.html").write_text(f"<html><body><h1>{words}</h1>{text}</body></html>")


@click.command(context_settings={"show_default": True})
@click.option("--pages", default=40, type=click.IntRange(1), help="Pages of the site.")
@click.option("--at-once", default=6, type=click.IntRange(1), help="Pages that are fetched at a time.")
@click.option("--word", default="fox", help="What to look for: ant, bee, cat, dog, eel or fox.")
def main(pages: int, at_once: int, word: str) -> None:
    """Crawl a site and search it."""
    ray.init()
    index = Index.remote()
    with tempfile.TemporaryDirectory() as root:
        write_site(root, pages)
        depths, broken = crawl(root, "page-0.html", index, at_once)
    print(f"{len(depths)} of {pages} pages were found, the farthest is {max(depths.values())} links away")
    print(f"{len(broken)} links are broken: {', '.join(sorted(broken))}")
    print(f"{len(ray.get(index.search.remote(word)))} pages have the word {word}")
    ray.shutdown()


if __name__ == "__main__":
    main()
