"""A program that spawns a process and forks another while it trains."""

import hashlib
import multiprocessing
import os


def square(number, answers):
    answers.put(number * number)


def main():
    import torch  # here: a spawned process reads this file too

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.Queue()
    for step in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).pow(2).mean().backward()
        optimizer.step()
        if step == 5:
            process = spawning.Process(target=square, args=(7, answers))
            process.start()
            print(answers.get())
            process.join()
        if step == 15:
            child = os.fork()
            if not child:
                os._exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
