"""An actor that is found by its name."""

import ray


@ray.remote
class Board:
    def __init__(self):
        self.notes = []

    def add(self, note):
        self.notes.append(note)
        return len(self.notes)


@ray.remote
def note(text):
    return ray.get(ray.get_actor("board").add.remote(text))


board = Board.options(name="board").remote()
print(ray.get(note.remote("a")), ray.get(note.remote("b")), ray.get(board.add.remote("c")))
try:
    Board.options(name="board").remote()
except ValueError:
    print("taken")
try:
    ray.get_actor("nobody")
except ValueError:
    print("nobody")
