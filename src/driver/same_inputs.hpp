// Ranks read deck, data and tokenizer each for itself, and then draw rows and make collectives without a word about them. A file that changed
// while they started, or a stale cache of a network file system, must not become a hang or wrong numbers.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/comm/comm.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/learn/training_set.hpp"

namespace trireme::driver {

// Collective. Throws UserError(configuration) on every rank, with the keys, when some rank has another complete deck than rank 0.
void require_same_deck(const comm::CommView& world, const std::string& deck);

// Collective. Throws UserError(bad_data) on every rank, naming `what` and the first rank, when some rank has other rows or other tokens of them
// than rank 0 (which also shows another tokenizer).
void require_same_rows(const comm::CommView& world, const std::string& what, const data::PromptSet& prompts);
void require_same_rows(const comm::CommView& world, const std::string& what, const learn::TrainingSet& rows);

// Digests that a checkpoint keeps, so that a later start notices other rows, or another tokenizer, under the same names. Local.
std::string digest_of(const data::PromptSet& prompts);
std::string digest_of(const learn::TrainingSet& rows);
// The same of a model's folder: names and sizes of its weight files, their first and last 64 KiB.
std::string digest_of_model(const std::filesystem::path& folder);

}  // namespace trireme::driver
