// Keys of [rollout], [data].
#include "config/key.hpp"

namespace trireme::config {
namespace {

void add_sampling_keys(KeyList<Options>& keys) {
  keys.add(KEY(rollout.batch_size), "Prompts per iteration.").range(1, 1 << 20);
  keys.add(KEY(rollout.over_sampling),
           "Prompts that are written beyond rollout.batch_size while roles take turns "
           "(train.async_depth = 0). An iteration learns from those whose longest "
           "answer is shortest and ends there; the others begin again in the next one, with its "
           "weights and the same draws, so long answers stay long. A "
           "prompt waits for 4 iterations at most. 0: an iteration waits for its longest answer.")
      .range(0, 1 << 20)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.n_samples_per_prompt), "Answers per prompt; their prompt is computed once.")
      .range(1, 4096);
  keys.add(KEY(rollout.temperature),
           "Sampling temperature; 0 takes the likeliest token (not for training).")
      .range(0, 100);
  keys.add(KEY(rollout.top_p),
           "Samples from the likeliest tokens that hold this probability together.")
      .above(0)
      .at_most(1);
  keys.add(KEY(rollout.top_k), "Samples from this many likeliest tokens; 0: all.").at_least(0);
  keys.add(
          KEY(rollout.min_p),
          "Samples from the tokens with at least this share of the likeliest one's probability, of "
          "those that top_k and top_p left; 0: all.")
      .range(0, 1)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.repetition_penalty),
           "Above 1, tokens that the prompt or the answer has are less likely: their logits are "
           "divided by it, negative ones multiplied (as transformers does). Log-probabilities stay "
           "those of the model.")
      .range(0.01, 100)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.max_new_tokens),
           "Longest answer in tokens; 0: what data.max_len leaves after the prompt.")
      .at_least(0);
  keys.add(KEY(rollout.min_new_tokens),
           "Tokens of an answer before it may end: the end token and rollout.stop_token_ids are "
           "not drawn and rollout.stop is "
           "not looked at until there are so many.")
      .range(0, 1 << 24)
      .departs("OpenRLHF: always 1, as vLLM's min_tokens.");
  keys.add(KEY(rollout.ignore_eos),
           "Goes on after the end token up to the length limit, for performance studies.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.stop),
           "Texts that end an answer; they stay in it. Special tokens count with their text, and "
           "one that is a text of its own "
           "here is a stop token.");
  keys.add(KEY(rollout.stop_token_ids),
           "Tokens that end an answer beside the model's end tokens, also with rollout.ignore_eos.")
      .range(0, 0x7FFFFFFF)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.logit_bias),
           "What is added to the logits of tokens before one is drawn: \"ID=BIAS\" or "
           "\"text:TEXT=BIAS\", where TEXT is one token and BIAS -100 to "
           "100 (-100: never drawn). Log-probabilities stay those of the model, as a trainer "
           "computes them.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.micro_batch_tokens),
           "Tokens of one forward pass for log-probabilities, values and rewards; 0: "
           "train.micro_batch_tokens.")
      .at_least(0)
      .departs("OpenRLHF: rollout.max_tokens_per_gpu.");
  keys.add(KEY(rollout.save_samples),
           "Samples per iteration that are written to samples.jsonl; -1: all.")
      .at_least(-1)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.queue_messages),
           "Finished sequences that may be under way from one rank to another, or wait there: a "
           "generator whose queue is full writes on when "
           "the reward rank has taken one.")
      .expert()
      .range(1, 1000000)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(rollout.queue_bytes), "The same in bytes; a sequence that is longer travels alone.")
      .expert()
      .range(1, 0x1p40)
      .departs("Not in OpenRLHF.");
}

// How records become texts and tokens.
void add_chat_keys(KeyList<Options>& keys) {
  keys.add(KEY(data.apply_chat_template),
           "Renders prompts that are plain texts as a user's turn of the model's chat template. "
           "Chats are always rendered.");
  keys.add(KEY(data.chat_template_kwargs),
           "Variables for the chat template, a JSON object in a text: '{\"enable_thinking\": "
           "false}'. "
           "A record's own columns `chat_template_kwargs`, `tools` and `documents` go before it.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(data.date),
           "Date (YYYY-MM-DD) for templates that call `strftime_now`; empty: the day on which the "
           "run began, which its checkpoints keep.")
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(
          KEY(data.special_tokens),
          "Tokens that the tokenizer puts around plain texts (BOS, EOS). once: not where the text "
          "has them already, as prompts that were rendered beforehand do; always: also there, with "
          "a warning; never: texts stay as they are.")
      .departs("Not in OpenRLHF, which adds none.");
  keys.add(KEY(data.system_prompt), "System turn in front of every chat that has none.")
      .departs("Not in OpenRLHF.");
}

void add_data_keys(KeyList<Options>& keys) {
  keys.add(KEY(data.prompt_dataset), "ppo: JSONL files of prompts.").departs("Local files only.");
  keys.add(KEY(data.prompt_probs), "Weights of these files in the mix; empty: by their sizes.")
      .at_least(0);
  keys.add(KEY(data.dataset), "sft, rm, dpo: JSONL files of training data.")
      .departs("Local files only.");
  keys.add(KEY(data.dataset_probs), "Weights of these files in the mix; empty: by their sizes.")
      .at_least(0);
  keys.add(KEY(data.pretrain_dataset),
           "ppo with actor.ptx_coef: JSONL files of texts (every token counts) or of examples as "
           "for sft (the answers count).")
      .departs("OpenRLHF removed its pretrain_data in April 2025.");
  keys.add(KEY(data.pretrain_probs), "Weights of these files in the mix; empty: by their sizes.")
      .at_least(0);
  keys.add(KEY(data.text_key), "data.pretrain_dataset: column of a text to learn as it is.")
      .never_empty()
      .expert();
  keys.add(KEY(data.prompt_key),
           "Column of the prompt: a text, or a chat (a list of {role, content}).")
      .never_empty()
      .departs("OpenRLHF: data.input_key = input.");
  keys.add(KEY(data.messages_key),
           "Column of a chat, a list of {role, content}. A list in the prompt column is a chat, "
           "too.")
      .never_empty();
  keys.add(KEY(data.response_key), "sft: column of the answer's text.")
      .never_empty()
      .departs("OpenRLHF: data.output_key.");
  keys.add(
          KEY(data.completion_key),
          "dpo with algo.dpo.loss = \"kto\" or \"apo_zero_unpaired\": column of the answer, a text "
          "or turns; data.label_key is true or false there.")
      .never_empty()
      .departs("Not in OpenRLHF; TRL: completion.");
  keys.add(KEY(data.label_key), "Column that rules compare with and plugins receive.")
      .never_empty()
      .departs("OpenRLHF: none; here a column that may be absent.");
  keys.add(KEY(data.chosen_key),
           "rm, dpo: column of the preferred answer: a text, turns, or a whole chat.")
      .never_empty();
  keys.add(KEY(data.rejected_key), "rm, dpo: column of the other answer.").never_empty();
  keys.add(KEY(data.margin_key),
           "rm: column of the margin between the two; a line without it has margin 0.")
      .never_empty();
  add_chat_keys(keys);
  keys.add(KEY(data.max_len), "Longest sequence, prompt and answer together, in tokens.")
      .range(2, 1 << 24);
  keys.add(KEY(data.max_samples), "Lines used of the data.").at_least(1).expert();
  keys.add(KEY(data.overlong_prompt),
           "What to do with a prompt that leaves no room for an answer: skip and count it, or stop "
           "with its line number.");
  keys.add(KEY(data.shuffle), "A new order in every pass, from run.seed.");
}

}  // namespace

void add_rollout_keys(KeyList<Options>& keys) {
  add_sampling_keys(keys);
  add_data_keys(keys);
}

}  // namespace trireme::config
