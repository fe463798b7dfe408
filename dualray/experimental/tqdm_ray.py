"""Progress bars of tasks and actors, under the name that Ray has for them; see dualray/util/progress.py."""

from dualray.util.progress import safe_print, tqdm

__all__ = ["safe_print", "tqdm"]
