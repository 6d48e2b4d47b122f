"""Loads torch once, then forks the processes of each job that comes as a line of JSON; answers with how they ended."""

import json
import os
import sys
import threading
import traceback


def child(job, rank):
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(rank["env"])
    for number, path in ((0, os.devnull), (1, rank["out"]), (2, rank["err"])):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["pencil", *job["words"]]
    processes.PARENT_PID = os.getppid()  # which was another when it was imported
    code = 0
    try:
        if job["script"]:
            exec(compile(job["script"], "script", "exec"), {"__name__": "__main__"})
        else:
            main(job["words"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # threads that still write
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    # what a training imports on its way, here and not in each process
    import torch
    import torch._dynamo
    import torch._inductor
    import torch.distributed.fsdp
    import torch.distributed.tensor
    from PIL import Image

    from pencil import families
    from pencil.cli.main import main
    from pencil.collectives import processes
    from pencil.train.loop import trainer as loop
    from pencil.train.tasks import language_modeling

    Image.init()
    families.family("gpt")
    torch.set_num_threads(1)
    language_modeling.PREVIEW_TOKENS, loop.plot_losses = 19, lambda run: None  # most of the time of a short training
    for line in sys.stdin:
        job = json.loads(line)
        started = []
        for rank in job["ranks"]:
            pid = os.fork()
            if not pid:
                child(job, rank)
            started.append(pid)
        ended = {}
        while len(ended) < len(started):
            pid, status = os.wait()
            ended[pid] = os.waitstatus_to_exitcode(status)
        answers.write(json.dumps([ended[pid] for pid in started]) + "\n")
        answers.flush()
