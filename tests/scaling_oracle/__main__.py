"""See the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.scaling_oracle import ANSWERS, CASES, draw


def main() -> None:
    script = Path(__file__).with_name("rays.py").read_text()
    cases = json.dumps([draw(number) for number in range(CASES)])
    ran = subprocess.run([sys.argv[1], "-c", script], input=cases, capture_output=True, text=True, check=True, cwd="/")
    answers = json.loads(ran.stdout.splitlines()[-1])
    ANSWERS.write_text("[\n" + ",\n".join(json.dumps(answer) for answer in answers) + "\n]\n")
    print(f"{len(answers)} answers in {ANSWERS}")


if __name__ == "__main__":
    main()
