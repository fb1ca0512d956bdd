// Ranks start the program and read deck, data and tokenizer each for itself, and then draw rows and
// make collectives without a word about them. A file that changed while they started, or a stale
// cache of a network file system, must not become a hang or wrong numbers.
#pragma once

#include <string>
#include <string_view>

#include "trireme/comm/comm.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/learn/training_set.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::learn {

// Collective. Throws UserError(unfit_environment) on every rank when some rank runs another build
// of the program than rank 0.
void require_same_program(const comm::CommView& world);

// Collective. Throws UserError(configuration) on every rank, with the keys, when some rank has
// another complete deck than rank 0.
void require_same_deck(const comm::CommView& world, const std::string& deck);

// Collective. Reads the deck's tokenizer (load_tokenizer); throws UserError(bad_data) on every rank
// when some rank's gives other ids a meaning, or an end, than that of rank 0: the ranks of a node
// encode prompts together, but each decodes its answers itself.
text::Tokenizer load_same_tokenizer(const comm::CommView& world, const config::Options& options);

// Collective. Throws UserError(bad_data) on every rank, naming `what` and the first rank, when some
// rank has other rows or other tokens of them than rank 0 (which also shows another tokenizer).
void require_same_rows(const comm::CommView& world, const std::string& what,
                       const data::PromptSet& prompts);
void require_same_rows(const comm::CommView& world, const std::string& what,
                       const TrainingSet& rows);

// Digests that a checkpoint keeps, so that a later start notices other rows, or another tokenizer,
// under the same names. Local.
std::string digest_of(const data::PromptSet& prompts);
std::string digest_of(const TrainingSet& rows);
// What only rewards see of prompts: the fields beside text and messages.
std::string digest_of_fields(const data::PromptSet& prompts);
// The file's description of a model, with its positions and frequencies.
std::string digest_of(const config::ModelShape& shape);
// What ids mean and which of them end an answer. How texts become ids shows in rows.
std::string digest_of(const text::Tokenizer& tokenizer);
// Of another model's tokenizer and chat template: texts become its ids outside of the rows.
std::string digest_of_reading(const text::Tokenizer& tokenizer);
std::string digest_of_text(std::string_view text);

}  // namespace trireme::learn
