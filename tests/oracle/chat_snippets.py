SNIP = []
REFUSED = []
def snippets():
    return []
