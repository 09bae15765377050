"""Program that reads model folders with the installed transformers, whichever version it is.

usage: python read_model.py NAME FOLDER ...

Each folder has a file `probe.json` with token ids, texts and messages. The program writes
`read_by_NAME.json` beside it: the log-probs of the tokens, the ids of the texts and the rendered messages.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer


def read(folder):
    """Return the log-probs, ids and texts of a model folder, or the error of loading it."""
    probe = json.loads((folder / "probe.json").read_text())
    found = {"version": transformers.__version__}
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            logits = model(torch.tensor([probe["ids"]]), use_cache=False).logits[0, :-1].float()
        chosen = torch.tensor(probe["ids"][1:])[:, None]
        found["log_probs"] = torch.log_softmax(logits, -1).gather(1, chosen)[:, 0].tolist()
        found["generation"] = {
            name: getattr(model.generation_config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        }
        if probe.get("texts"):
            tokenizer = AutoTokenizer.from_pretrained(folder)
            found["texts"] = [tokenizer(text)["input_ids"] for text in probe["texts"]]
            found["decoded"] = [tokenizer.decode(ids, skip_special_tokens=True) for ids in found["texts"]]
            found["special"] = sorted(tokenizer.all_special_tokens)
            found["rendered"] = tokenizer.apply_chat_template(
                probe["messages"], tokenize=False, add_generation_prompt=True
            )
    except Exception as error:  # the test shows it
        found["error"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # small models, beside other jobs
    for name in sys.argv[2:]:
        (Path(name) / f"read_by_{sys.argv[1]}.json").write_text(json.dumps(read(Path(name))))
