# SPDX-License-Identifier: Apache-2.0
"""Writes small random checkpoints of the configurations that the DeepSeek/Kimi family allows, each with the logits that it
must give: tests/data/variants/<name>/{config.json, model.safetensors, expected.safetensors}.

The logits come from the forward pass below, in float64, written from the definition of the model (keys and values of every
head are expanded, nothing is absorbed or cached), with the conventions of transformers. Needs numpy alone:
    python3 tools/make_variants.py tests/data/variants
"""
import json
import math
import os
import struct
import sys

import numpy as np

TOKENS = 32

BASE = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu", "vocab_size": 48,
    "hidden_size": 24, "intermediate_size": 32, "moe_intermediate_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 10000.0, "bos_token_id": 0,
    "eos_token_id": 1, "tie_word_embeddings": False, "attention_bias": False,
}
V2 = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "norm_topk_prob": False}
YARN = {"type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 16}


def new_rope(parameters, **more):
    """rope_parameters in place of rope_theta and rope_scaling."""
    return {"rope_theta": None, "rope_parameters": {**parameters, **more}}


VARIANTS = {
    # DeepSeek-V2-Lite: q not compressed, softmax, weights not renormalised, YaRN in the old form.
    "v2-lite": {**V2, "q_lora_rank": None, "topk_method": "greedy", "routed_scaling_factor": 1.0, "n_shared_experts": 2,
                "rope_scaling": YARN},
    # DeepSeek-V2: the best groups by their best expert.
    "v2-groups": {**V2, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                  "routed_scaling_factor": 16.0, "scoring_func": "softmax"},
    # DeepSeek-V3: the best groups by the sum of their two best, biases below zero too.
    "v3-groups": {"n_group": 4, "topk_group": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "v3-tied": {"tie_word_embeddings": True, "norm_topk_prob": False, "n_shared_experts": 2, "num_experts_per_tok": 1},
    "v3-dense": {"first_k_dense_replace": 2, "q_lora_rank": None},
    "v3-all-dense": {"n_routed_experts": None, "rope_scaling": None},
    "v3-no-shared": {"n_shared_experts": None, "first_k_dense_replace": 0},
    "v3-linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "v3-linear-mscale": new_rope({"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0, "mscale_all_dim": 1.0}),
    "v3-yarn-new": new_rope({**YARN, "type": None, "rope_type": "yarn", "rope_theta": 50000.0}, mscale=1.0,
                            mscale_all_dim=0.5),
    "v3-yarn-plain": {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
                                       "truncate": False}},
    "v3-yarn-attention-factor": {"rope_scaling": {**YARN, "attention_factor": 1.3}},
    # No size is a multiple of a vector, every expert is used.
    "v3-odd": {"vocab_size": 53, "hidden_size": 37, "intermediate_size": 45, "moe_intermediate_size": 11,
               "num_attention_heads": 3, "num_key_value_heads": 3, "n_routed_experts": 7, "num_experts_per_tok": 7,
               "kv_lora_rank": 13, "q_lora_rank": 19, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 5},
}


def is_moe(c, layer):
    return bool(c.get("n_routed_experts")) and layer >= c["first_k_dense_replace"]


def shapes(c):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    qk = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}

    def feed_forward(prefix, width):
        out[prefix + "gate_proj.weight"] = out[prefix + "up_proj.weight"] = (width, hidden)
        out[prefix + "down_proj.weight"] = (hidden, width)

    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        a, m = p + "self_attn.", p + "mlp."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (hidden,)
        if c["q_lora_rank"]:
            out[a + "q_a_proj.weight"] = (c["q_lora_rank"], hidden)
            out[a + "q_a_layernorm.weight"] = (c["q_lora_rank"],)
            out[a + "q_b_proj.weight"] = (heads * qk, c["q_lora_rank"])
        else:
            out[a + "q_proj.weight"] = (heads * qk, hidden)
        out[a + "kv_a_proj_with_mqa.weight"] = (c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden)
        out[a + "kv_a_layernorm.weight"] = (c["kv_lora_rank"],)
        out[a + "kv_b_proj.weight"] = (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        out[a + "o_proj.weight"] = (hidden, heads * c["v_head_dim"])
        if not is_moe(c, i):
            feed_forward(m, c["intermediate_size"])
            continue
        out[m + "gate.weight"] = (c["n_routed_experts"], hidden)
        if c["model_type"] == "deepseek_v3":
            out[m + "gate.e_score_correction_bias"] = (c["n_routed_experts"],)
        for e in range(c["n_routed_experts"]):
            feed_forward(f"{m}experts.{e}.", c["moe_intermediate_size"])
        if c["n_shared_experts"]:
            feed_forward(m + "shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
    return out


def to_bf16(x):
    """Bits of the nearest bf16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def random_weights(c, rng):
    """Name -> (array to store, float64 value); biases are f32, all else bf16."""
    out = {}
    for name, shape in shapes(c).items():
        x = rng.standard_normal(shape)
        if name.endswith("bias"):
            stored = (0.4 * x - 0.3).astype(np.float32)
            out[name] = stored, stored.astype(np.float64)
            continue
        stored = to_bf16(1 + 0.2 * x if len(shape) == 1 else x * 1.3 / math.sqrt(shape[1]))
        out[name] = stored, from_bf16(stored)
    return out


# ---- the forward pass ----
def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mscale_of(factor, m):
    return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0


def rope(c):
    """Inverse frequencies, factor on cos and sin, factor on the softmax scale."""
    p = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta, dim = p.get("rope_theta") or c["rope_theta"], c["qk_rope_head_dim"]
    kind = p.get("rope_type") or p.get("type") or "default"
    frequencies = theta ** (-np.arange(0, dim, 2) / dim)
    if kind == "default":
        return frequencies, 1.0, 1.0
    factor, all_dim = p["factor"], p.get("mscale_all_dim") or 0
    on_scale = mscale_of(factor, all_dim) ** 2 if all_dim else 1.0
    if kind == "linear":
        return frequencies / factor, 1.0, on_scale
    original = p["original_max_position_embeddings"]
    ends = [dim * math.log(original / (p.get(k, d) * 2 * math.pi)) / (2 * math.log(theta))
            for k, d in (("beta_fast", 32), ("beta_slow", 1))]
    if p.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dim - 1)
    high += 0.001 if low == high else 0
    stretched = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    frequencies = frequencies / factor * stretched + frequencies * (1 - stretched)
    if p.get("attention_factor"):
        on_angle = p["attention_factor"]
    elif p.get("mscale") and all_dim:
        on_angle = mscale_of(factor, p["mscale"]) / mscale_of(factor, all_dim)
    else:
        on_angle = mscale_of(factor, 1)
    return frequencies, on_angle, on_scale


def rotate(x, frequencies, factor):
    """x [tokens, ..., dim]: the pairs (0, 1), (2, 3), ... turn by position times frequency."""
    angle = np.arange(len(x))[:, None] * frequencies
    angle = angle.reshape((len(x),) + (1,) * (x.ndim - 2) + (-1,))
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle) * factor
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def attention(c, w, p, x):
    t, heads = len(x), c["num_attention_heads"]
    nope, turned, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    frequencies, on_angle, on_scale = rope(c)
    if c["q_lora_rank"]:
        q = rms_norm(x @ w(p + "q_a_proj.weight").T, w(p + "q_a_layernorm.weight"), 1e-6) @ w(p + "q_b_proj.weight").T
    else:
        q = x @ w(p + "q_proj.weight").T
    q = q.reshape(t, heads, nope + turned)
    kv = x @ w(p + "kv_a_proj_with_mqa.weight").T
    latent = rms_norm(kv[:, :c["kv_lora_rank"]], w(p + "kv_a_layernorm.weight"), 1e-6)
    k_rope = rotate(kv[:, c["kv_lora_rank"]:], frequencies, on_angle)
    q_rope = rotate(q[..., nope:], frequencies, on_angle)
    expanded = (latent @ w(p + "kv_b_proj.weight").T).reshape(t, heads, nope + v)
    scores = np.einsum("qhd,khd->hqk", q[..., :nope], expanded[..., :nope]) + np.einsum("qhd,kd->hqk", q_rope, k_rope)
    scores *= on_scale / math.sqrt(nope + turned)
    scores[:, np.triu(np.ones((t, t), bool), 1)] = -np.inf
    out = np.einsum("hqk,khd->qhd", softmax(scores), expanded[..., nope:])
    return out.reshape(t, heads * v) @ w(p + "o_proj.weight").T


def feed_forward(w, p, x):
    return (silu(x @ w(p + "gate_proj.weight").T) * (x @ w(p + "up_proj.weight").T)) @ w(p + "down_proj.weight").T


def route(c, logits, bias):
    """One token's experts and their weights."""
    v2 = c["model_type"] == "deepseek_v2"
    score = softmax(logits) if v2 else 1 / (1 + np.exp(-logits))
    choice = score if v2 else score + bias
    if not v2 or c["topk_method"] == "group_limited_greedy":
        groups = np.sort(choice.reshape(c["n_group"], -1), -1)[:, ::-1]
        group_score = groups[:, 0] if v2 else groups[:, :2].sum(-1)
        kept = np.argsort(-group_score)[:c["topk_group"]]
        allowed = np.isin(np.arange(len(choice)) // groups.shape[1], kept)
        choice = np.where(allowed, choice, -np.inf)
    chosen = np.argsort(-choice)[:c["num_experts_per_tok"]]
    weights = score[chosen]
    if c["norm_topk_prob"]:
        weights = weights / weights.sum()
    return chosen, weights * c["routed_scaling_factor"]


def experts(c, w, p, x):
    out = feed_forward(w, p + "shared_experts.", x) if c["n_shared_experts"] else np.zeros_like(x)
    bias = w(p + "gate.e_score_correction_bias") if c["model_type"] == "deepseek_v3" else None
    logits = x @ w(p + "gate.weight").T
    for row in range(len(x)):
        for expert, weight in zip(*route(c, logits[row], bias)):
            out[row] += weight * feed_forward(w, f"{p}experts.{expert}.", x[row:row + 1])[0]
    return out


def forward(c, w, ids):
    h, eps = w("model.embed_tokens.weight")[ids], c["rms_norm_eps"]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = h + attention(c, w, p + "self_attn.", rms_norm(h, w(p + "input_layernorm.weight"), eps))
        x = rms_norm(h, w(p + "post_attention_layernorm.weight"), eps)
        h = h + (experts(c, w, p + "mlp.", x) if is_moe(c, i) else feed_forward(w, p + "mlp.", x))
    head = w("model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight")
    return rms_norm(h, w("model.norm.weight"), eps) @ head.T


# ---- files ----
def save(path, tensors):
    names = {"uint16": "BF16", "float32": "F32", "int32": "I32"}
    header, data = {}, b""
    for name, x in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        raw = x.tobytes()
        header[name] = {"dtype": names[str(x.dtype)], "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main(out):
    for seed, (name, changes) in enumerate(VARIANTS.items()):
        c = {**BASE, **changes}
        rng = np.random.Generator(np.random.PCG64(seed))
        weights = random_weights(c, rng)
        ids = rng.integers(0, c["vocab_size"], TOKENS)
        logits = forward(c, lambda key: weights[key][1], ids)
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump({k: v for k, v in c.items() if not (k == "rope_theta" and v is None)}, f, indent=1)
            f.write("\n")
        save(os.path.join(folder, "model.safetensors"), {key: pair[0] for key, pair in weights.items()})
        save(os.path.join(folder, "expected.safetensors"), {"ids": ids.astype(np.int32), "logits": logits.astype(np.float32)})


if __name__ == "__main__":
    main(sys.argv[1])
