"""The command `ray` of programs whose `import ray` imports dualray: Ray's commands and options, made of dualray's.

`dualray.as_ray.install()` puts the directory of the executable (dualray/as_ray/bin) in front of PATH. The executable
starts main.py with the program's Python. Commands that dualray has nothing for are in refused.py, with the way out.
"""
