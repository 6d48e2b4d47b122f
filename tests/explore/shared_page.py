"""What is inside a page that stands alone."""

import base64
import gzip
import json
import re


def graph_of(page):
    return json.loads(_inside(page, "graph"))


def views_of(page):
    return json.loads(gzip.decompress(base64.b64decode(_inside(page, "views"))))


def _inside(page, id):
    return re.search(rf'id="{id}">(.*?)</script>', page, re.DOTALL)[1]
