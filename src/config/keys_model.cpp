// Keys of [model], [actor], [critic], [reference].
#include "config/key.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

namespace {

// Actor and critic have the same optimizer keys; `Access` leads from Options to OptimizerOptions.
template <class Access>
void add_optimizer_keys(KeyList<Options>& keys, const std::string& role, Access optimizer) {
  const auto add = [&](const char* name, auto member, std::string_view help) -> Key<Options>& {
    return keys.add(
        role + "." + name,
        [ optimizer, member ](auto& root) -> auto& { return member(optimizer(root)); }, help);
  };
  add(KEY(adam.lr), "Peak learning rate of AdamW.").at_least(0);
  add(KEY(adam.betas), "Decay of AdamW's first and second moments.").at_least(0).below(1);
  add(KEY(adam.eps), "AdamW's epsilon.").above(0).expert();
  add(KEY(adam.weight_decay), "Decoupled weight decay.").at_least(0);
  add(KEY(lr_scheduler), "Shape of the learning rate over the run after warm-up.");
  add(KEY(warmup_ratio),
      "Share of the run's optimizer steps (rounded up) in which the rate rises linearly from 0.")
      .range(0, 1);
  add(KEY(min_lr_ratio), "Where cosine_with_min_lr ends, as a share of the peak.").range(0, 1);
  add(KEY(max_norm), "Gradients are scaled down to this global norm; 0: no clipping.").at_least(0);
  add(KEY(freeze),
      "Parameters that are not trained, by patterns of their Hugging Face names: \"*\" is any "
      "text, "
      "{0..3} a number from 0 to 3. [\"model.embed_tokens.*\", \"model.layers.{0..11}.*\"] freezes "
      "the embedding and the first twelve blocks. They take no gradients and no optimizer state, "
      "and checkpoints do not hold them.")
      .departs("Not in OpenRLHF.");
}

// `base`: key of the folder that the adapter is made on.
template <class Access>
void add_lora_keys(KeyList<Options>& keys, const std::string& section, const char* base,
                   Access lora) {
  const auto add = [&](const char* name, auto member, std::string help) -> Key<Options>& {
    return keys.add(
        section + "." + name, [ lora, member ](auto& root) -> auto& { return member(lora(root)); },
        help);
  };
  add(KEY(path), base::text("Folder of an adapter to train on, as peft stores it "
                            "(adapter_config.json and adapter_model.safetensors), made on ",
                            base, "; the other keys of ", section, " are then its own."));
  add(KEY(rank),
      "Rank of a low-rank adapter (LoRA) that is trained while the model's own weights stay as "
      "they are; 0: the weights are trained.")
      .range(0, 1 << 16)
      .departs("OpenRLHF: lora.rank.");
  add(KEY(alpha), "Scale of the adapter, times the rank.").above(0);
  add(KEY(rslora),
      "The scale is alpha / sqrt(rank) instead of alpha / rank (rank-stabilised LoRA).")
      .expert();
  add(KEY(targets),
      "Modules to adapt: ends of their names (\"q_proj\"), or all-linear: every linear layer "
      "of the blocks. embed_tokens and lm_head where they are not tied.");
  add(KEY(dropout), "Share of an adapter's inputs that is set to 0 in training.")
      .at_least(0)
      .below(1);
  add(KEY(modules_to_save),
      "Modules that are trained whole, in a copy beside the model's own, and stored with the "
      "adapter: embed_tokens, lm_head, score.")
      .expert();
}

}  // namespace

void add_model_keys(KeyList<Options>& keys) {
  keys.add(KEY(model.path),
           "Folder of the policy to train, in Hugging Face layout: config.json, *.safetensors, "
           "tokenizer.json.")
      .departs("OpenRLHF: actor.model_name_or_path. Nothing is downloaded: a local folder.");
  keys.add(KEY(model.shape),
           "A config.json, or a folder with one: random weights of this shape instead of "
           "model.path, for tests and performance "
           "studies.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(model.tokenizer), "Folder of the tokenizer; empty: model.path.");
  keys.add(KEY(model.dtype),
           "Type in which models compute and weights travel; the optimizer's masters are fp32 in "
           "any case. auto: bf16 where all "
           "ranks multiply it natively (GPUs, AVX512-BF16, AMX), unless fp32 is measured to be at "
           "least 15 % faster on these processors for this deck (train.deterministic: without "
           "measuring); else fp32. A resumed run keeps its type.")
      .departs(
          "OpenRLHF: ds.param_dtype; its generator is always bf16, ours is the same as the "
          "trainer.");
  keys.add(KEY(model.head_dtype),
           "Type of the logits of actor and reference where model.dtype is bf16: model rounds each "
           "to bf16 (by up to 0.03 where it is 8 to 16); fp32 takes "
           "weights and hidden states in bf16 and keeps all else of the product in fp32, in "
           "training and generation alike. The head is slower then.")
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(model.max_len), "Longest sequence a model is built for; 0: data.max_len.")
      .at_least(0)
      .expert();

  add_optimizer_keys(
      keys, "actor", [](auto& root) -> auto& { return root.actor; });
  add_lora_keys(
      keys, "actor.lora", "model.path", [](auto& root) -> auto& { return root.actor.lora; });
  keys.add(KEY(actor.eps_clip), "Clip distance of the probability ratio.").at_least(0).below(1);
  keys.add(KEY(actor.eps_clip_low_high),
           "[low, high] clip distances instead of actor.eps_clip (clip-higher).")
      .at_least(0);
  keys.add(KEY(actor.dual_clip),
           "Lower bound c of the objective where the advantage is negative: max(S, c A). More than "
           "1.")
      .above(1);
  add_policy_loss_keys(keys);
  keys.add(KEY(actor.entropy_coef),
           "Weight of the entropy bonus; 0 computes and logs the entropy without using it, none "
           "does not compute it.")
      .at_least(0);
  keys.add(KEY(actor.ptx_coef),
           "Weight of the language-model loss on data.pretrain_dataset in the actor's loss "
           "(PPO-ptx); 0: none.")
      .at_least(0)
      .departs("OpenRLHF removed its ptx_coef in April 2025; DeepSpeed-Chat: unsup_coef.");
  keys.add(KEY(actor.ptx_batch_size),
           "Sequences of that set per optimizer step, over all ranks; 0: train.batch_size.")
      .at_least(0);

  keys.add(KEY(critic.path),
           "Folder of the critic's start, with the policy's tokenizer; empty: the first reward "
           "model that has it, else the actor with a new value head. With critic.lora: empty is "
           "model.path, and where that has an adapter, too, both share its weights in memory.")
      .departs("OpenRLHF: critic.model_name_or_path.");
  add_optimizer_keys(
      keys, "critic", [](auto& root) -> auto& { return root.critic; });
  add_lora_keys(
      keys, "critic.lora", "critic.path, else model.path",
      [](auto& root) -> auto& { return root.critic.lora; });
  keys.add(KEY(critic.value_clip),
           "New values are clipped to this distance from the old ones in the value loss; none: "
           "plain squared error.")
      .above(0);
  keys.add(KEY(critic.freezing_steps),
           "The actor starts to train after this iteration number, so N + 1 iterations train the "
           "critic alone; -1: none.")
      .at_least(-1);
  keys.add(KEY(critic.save_value_network),
           "Exports the critic beside the actor where ckpt.save_hf exports.");

  keys.add(KEY(reference.path),
           "Folder of the frozen reference of the KL terms; empty: model.path. sft with "
           "algo.distill.coef: of the teacher.")
      .departs("OpenRLHF: the actor's path, always.");
  keys.add(KEY(reference.sync_every),
           "Iterations after which the reference takes the actor's weights, again and again; they "
           "are written to <run.dir>/reference for restarts. 0: it stays.")
      .range(0, 1 << 24)
      .departs("Not in OpenRLHF; TRL: sync_ref_model, with optimizer steps and a mixture.");
}

}  // namespace trireme::config
