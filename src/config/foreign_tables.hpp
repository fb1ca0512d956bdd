// One table for each other system, and notes that several of them have.
#pragma once

#include <span>
#include <string_view>

#include "trireme/config/foreign_names.hpp"

namespace trireme::config {

std::span<const ForeignName> openrlhf_names();
std::span<const ForeignName> trl_names();
std::span<const ForeignName> verl_names();

namespace notes {
inline constexpr std::string_view by_tokens =
    "nothing: sequences are packed by tokens (train.micro_batch_tokens)";
inline constexpr std::string_view packed = "nothing: sequences are always packed";
inline constexpr std::string_view stage_3 =
    "nothing: always ZeRO stage 3 (train.shard_group for hybrid sharding)";
inline constexpr std::string_view by_itself =
    "nothing: roles on the same ranks give their memory back by themselves";
inline constexpr std::string_view own_engine = "nothing: the generator is part of the program";
inline constexpr std::string_view every_line =
    "nothing: metrics.jsonl and samples.jsonl have every iteration";
inline constexpr std::string_view own_attention =
    "nothing: attention kernels are chosen at the start";
inline constexpr std::string_view as_ranks = "nothing: ranks are those of the MPI job";
inline constexpr std::string_view in_max_len =
    "data.max_len bounds prompt and answer together: the sum is carried over";
inline constexpr std::string_view local_file =
    "a JSONL file on disk: nothing is downloaded; docs/user/data.md has the columns";
inline constexpr std::string_view local_model = "a local folder: nothing is downloaded";
inline constexpr std::string_view one_reward_model = "a [[reward.source]] with kind = \"model\"";
inline constexpr std::string_view plugin =
    "write it as a plugin (docs/user/run.md): a [[reward.source]] with kind = \"plugin\"";
inline constexpr std::string_view no_experts = "mixtures of experts are not built";
inline constexpr std::string_view episodes =
    "episodes of several turns: a program of yours in [environment]";
inline constexpr std::string_view no_context =
    "context parallelism is not built: a sequence stays on one rank";
inline constexpr std::string_view all_on_all =
    "nothing: with empty [ranks] all roles are on all ranks";
inline constexpr std::string_view any_ranks = "nothing: any number of ranks reads any checkpoint";
inline constexpr std::string_view no_vision = "vision models are not built";
inline constexpr std::string_view no_tensor_parallel =
    "tensor parallelism in training is not built (generate.tensor_parallel is that of generation)";
inline constexpr std::string_view own_tokenizer = "nothing: tokenizer.json is read";
inline constexpr std::string_view whole_files = "files are read whole: give ones with the part";
inline constexpr std::string_view own_loader = "nothing: data is read by the program itself";
inline constexpr std::string_view own_kernels = "nothing: kernels are chosen at the start";
inline constexpr std::string_view report_sinks =
    "nothing: report.sinks writes files for W&B, TensorBoard and MLflow";
inline constexpr std::string_view every_token =
    "sft learns answers only: ppo with actor.ptx_coef learns every token of data.pretrain_dataset";
inline constexpr std::string_view margins =
    "nothing: rm takes the column data.margin_key where the data has it";
inline constexpr std::string_view two_bounds =
    "algo.advantage.is_correction_threshold takes both bounds: [low, high]";
inline constexpr std::string_view adam = "nothing: AdamW is the optimizer";
}  // namespace notes

}  // namespace trireme::config
