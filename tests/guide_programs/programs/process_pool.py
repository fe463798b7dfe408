"""The pool of processes that programs know."""

from ray.util.multiprocessing import Pool


def power(x, exponent=2):
    return x**exponent


with Pool(2) as pool:
    print(pool.map(power, range(5)))
    print(pool.starmap(power, [(2, 3), (3, 2)]))
    print(pool.apply(power, (4,), {"exponent": 3}), pool.apply_async(power, (5,)).get())
    print(list(pool.imap(power, range(4))), sorted(pool.imap_unordered(power, range(4))))
