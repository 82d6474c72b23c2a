"""Train one step of a tiny Llama with the exported adapters; print, as JSON, what was trained, and what moved.

python check_peft.py FOLDER MODEL.json
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

folder, config = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
torch.manual_seed(0)
read = PeftConfig.from_pretrained(folder)
assert isinstance(read, LoraConfig)
model = get_peft_model(LlamaForCausalLM(LlamaConfig(**config)), read)
tokens = torch.randint(config["vocab_size"], (2, 16))
before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
optimizer = torch.optim.AdamW(filter(lambda weight: weight.requires_grad, model.parameters()), lr=1e-2)
losses = []
for _ in range(2):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(float(loss.detach()))
quantization = folder / "quantization_config.json"
fields = json.loads(quantization.read_text()) if quantization.exists() else {}
print(
    json.dumps(
        {
            "trainable": model.get_nb_trainable_parameters()[0],
            "moved": sorted(
                {n.split(".")[-4] for n, w in model.named_parameters() if not torch.equal(w, before[n])}
            ),
            "losses": losses,
            "four_bit": BitsAndBytesConfig(**fields).load_in_4bit if fields else False,
        }
    )
)
