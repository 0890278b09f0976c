"""Tokens that are drafted, against one by one: `python -m benchmarks.drafts --model DIR`.

A language model goes on in its own style, after a text of half the length that it can read. Drafts
are of the text itself, or of a smaller model of the same tokens, `--draft DIR`. Both folders are
runs of `examples.language_model`; `--small` takes random models.
"""

import pathlib

import keras

from benchmarks import runner
from examples import language_model
from keras_attention import generation


def main():
    given = {f"--{x}": {"metavar": "DIR", "help": "of a run"} for x in ("model", "draft")}
    given |= {"--temperature": {"type": float, "default": 0.0, "help": "0: the likeliest tokens"}}
    given |= {"--prompt": {"type": pathlib.Path, "help": "a file with the text to go on with"}}
    options = runner.parsed(__doc__, given, ("lookup", "model"))
    model, small = (language_model.build(50, 32, n, 2, 16, 0.0, "rotary") for n in (2, 1))
    known, context = [*range(16)], 32
    if not options.small:
        small = options.draft and language_model.load(options.draft)[0]
        model, tokenizer, context = language_model.load(options.model)
        text = language_model.shared.read_text(options.prompt)
        known = language_model.encode(tokenizer, text).tolist()
    prompt, count = [known[-(context // 2) :]], context - context // 2
    drawn = {"seed": 0, "temperature": options.temperature}
    method, settings = ("sample", drawn) if options.temperature else ("greedy", {})

    def sides(name, options):
        draft = generation.PromptLookup() if name == "lookup" else generation.DraftModel(small)
        request = model._request(prompt, count, {}, method=method, draft=draft, **settings)
        begun = request.run("first", request.arrays)
        steps = int(request.run("go_on", *begun).count)

        def written(draft=None):
            found = model.generate(prompt, count, method, draft=draft, **settings)
            return keras.ops.convert_to_numpy(found.tokens)

        return f"{count} tokens, in {steps} steps", lambda: written(draft), written

    runner.turns(sides, options, context=context)


if __name__ == "__main__":
    main()
