#include "trireme/config/foreign_names.hpp"

#include <algorithm>

#include "config/foreign_tables.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {
namespace {

constexpr ForeignWord words[] = {
    {Origin::verl, "algo.advantage.estimator", "grpo", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "grpo", "group_norm"},
    {Origin::openrlhf, "algo.advantage.estimator", "grpo", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "group", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "true", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "none", "dr_grpo"},
    {Origin::trl, "algo.advantage.estimator", "false", "dr_grpo"},
    {Origin::openrlhf, "algo.advantage.estimator", "reinforce++", "reinforce"},
    {Origin::verl, "algo.kl.estimator", "kl", "k1"},
    {Origin::verl, "algo.kl.estimator", "mse", "k2"},
    {Origin::verl, "algo.kl.estimator", "low_var_kl", "k3"},
    {Origin::trl, "actor.loss_agg_mode", "grpo", "seq-mean-token-mean"},
    {Origin::trl, "actor.loss_agg_mode", "bnpo", "token-mean"},
    {Origin::trl, "actor.loss_agg_mode", "dapo", "token-mean"},
    {Origin::trl, "actor.loss_agg_mode", "dr_grpo", "seq-mean-token-sum-norm"},
    {Origin::trl, "actor.policy_loss_type", "token", "ppo"},
    {Origin::trl, "actor.policy_loss_type", "sequence", "gspo"},
    {Origin::verl, "actor.policy_loss_type", "vanilla", "ppo"},
    {Origin::verl, "actor.policy_loss_type", "geo_mean", "gmpo"},
    {Origin::trl, "actor.lr_scheduler", "cosine", "cosine_with_min_lr"},
    {Origin::verl, "actor.lr_scheduler", "cosine", "cosine_with_min_lr"},
    {Origin::openrlhf, "actor.lr_scheduler", "cosine", "cosine_with_min_lr"},
    {Origin::trl, "actor.lr_scheduler", "constant", "constant_with_warmup"},
    {Origin::verl, "actor.lr_scheduler", "constant", "constant_with_warmup"},
    {Origin::openrlhf, "actor.lr_scheduler", "constant", "constant_with_warmup"},
    {Origin::trl, "model.dtype", "bfloat16", "bf16"},
    {Origin::trl, "model.dtype", "float32", "fp32"},
    {Origin::openrlhf, "model.dtype", "bfloat16", "bf16"},
    {Origin::openrlhf, "model.dtype", "float32", "fp32"},
    {Origin::verl, "ckpt.resume", "disable", "never"},
};

bool same_name(Origin origin, std::string_view ours, std::string_view given) {
  if (origin == Origin::verl) return ours == given;
  return std::ranges::equal(ours, given, [](char a, char b) { return a == (b == '-' ? '_' : b); });
}

constexpr Origin origins[] = {Origin::openrlhf, Origin::trl, Origin::verl};

}  // namespace

std::string_view name_of(Origin origin) {
  switch (origin) {
    case Origin::openrlhf: return "OpenRLHF";
    case Origin::trl: return "TRL";
    case Origin::verl: break;
  }
  return "verl";
}

std::span<const ForeignName> foreign_names(Origin origin) {
  switch (origin) {
    case Origin::openrlhf: return openrlhf_names();
    case Origin::trl: return trl_names();
    case Origin::verl: break;
  }
  return verl_names();
}

const ForeignName* foreign_name(Origin origin, std::string_view name) {
  const auto table = foreign_names(origin);
  const auto found = std::ranges::find_if(
      table, [&](const ForeignName& entry) { return same_name(origin, entry.name, name); });
  return found == table.end() ? nullptr : &*found;
}

std::span<const ForeignWord> foreign_words() { return words; }

std::string_view word_here(Origin origin, std::string_view key, std::string_view word) {
  const auto found = std::ranges::find_if(words, [&](const ForeignWord& entry) {
    return entry.origin == origin && entry.key == key && entry.word == word;
  });
  return found == std::end(words) ? word : found->here;
}

std::string foreign_table_markdown(Origin origin) {
  std::string out = base::text("| ", name_of(origin), " | here | |\n| --- | --- | --- |\n");
  for (const ForeignName& entry : foreign_names(origin)) {
    std::string here = entry.key.empty() ? "" : base::text("`", entry.key, "`");
    if (!entry.value.empty()) here = base::text("`", entry.key, " = ", entry.value, "`");
    out += base::text("| `", entry.name, "` | ", here, " | ", entry.note, " |\n");
  }
  out += "\n| key | their word | here |\n| --- | --- | --- |\n";
  for (const ForeignWord& entry : words) {
    if (entry.origin == origin)
      out += base::text("| `", entry.key, "` | `", entry.word, "` | `", entry.here, "` |\n");
  }
  return out;
}

std::string foreign_hint(std::string_view name) {
  for (const Origin origin : origins) {
    const ForeignName* entry = foreign_name(origin, name);
    if (entry == nullptr) continue;
    const std::string owner = base::text("(a name of ", name_of(origin), "): here it is ");
    if (entry->key.empty()) return base::text(owner, entry->note);
    return base::text(owner, entry->key, entry->value.empty() ? "" : " = ", entry->value,
                      entry->note.empty() ? "" : base::text(" (", entry->note, ")"));
  }
  return "";
}

std::string foreign_word_hint(std::string_view key, std::string_view word) {
  std::string owners;
  std::string_view here;
  for (const ForeignWord& entry : words) {
    if (entry.key != key || entry.word != word) continue;
    here = entry.here;
    owners += base::text(owners.empty() ? "" : " and ", name_of(entry.origin));
  }
  return here.empty() ? "" : base::text("(a word of ", owners, "): here it is \"", here, "\"");
}

}  // namespace trireme::config
