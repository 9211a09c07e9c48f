"""A training whose workers are made anew each epoch, as those of torch's DataLoader are; under any start method.

Arguments: the start method, the workers' kind (`daemon` or `process`), whether to call configure(). It says `trained`
when the epochs are over, and lives on.
"""

import multiprocessing
import sys
import time

EPOCHS = 2
WORKERS = 2
WORK_SECONDS = 3.5


def work() -> None:
    """Load data for as long as an epoch takes."""
    time.sleep(WORK_SECONDS)


def main() -> None:
    """Train, then evaluate."""
    method, kind, *configures = sys.argv[1:]
    if configures:
        from otel_sysmetrics import configure

        configure()
    multiprocessing.set_start_method(method)
    for _ in range(EPOCHS):
        workers = [multiprocessing.Process(target=work, daemon=kind == "daemon") for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    sys.stdout.write("trained\n")
    sys.stdout.flush()
    time.sleep(1)


if __name__ == "__main__":
    main()
