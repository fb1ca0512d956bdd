#include "trireme/learn/same_inputs.hpp"

#include <cstdint>
#include <string_view>

#include "learn/fingerprint.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/program.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/base/wire.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/config/changes.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/trace/guards.hpp"

namespace trireme::learn {
namespace {

uint64_t fingerprint(const data::PromptSet& prompts) {
  const trace::Guarding guard{trace::Guard::inputs};
  Fingerprint all;
  for (int64_t row = 0; row < prompts.size(); ++row) {
    all.add(prompts[row].prompt);
    all.add(prompts[row].label);
    all.add(base::to_bytes(prompts[row].ids));
  }
  return all.value();
}

// Of what reward sources compare with and plugins get.
uint64_t fields_fingerprint(const data::PromptSet& prompts) {
  const trace::Guarding guard{trace::Guard::inputs};
  Fingerprint all;
  for (int64_t row = 0; row < prompts.size(); ++row) {
    all.add(prompts[row].label_json);
    all.add(prompts[row].extra);
  }
  return all.value();
}

uint64_t fingerprint(const TrainingSet& rows) {
  const trace::Guarding guard{trace::Guard::inputs};
  Fingerprint all;
  for (int64_t row = 0; row < rows.size(); ++row) {
    Samples sequences;
    rows.append(row, sequences);
    all.add(sequences.to_bytes());
    if (rows.labelled()) all.add(rows.wanted(row) ? "wanted" : "unwanted");
  }
  return all.value();
}

void require_same(const comm::CommView& world, const std::string& what, int64_t rows,
                  uint64_t fingerprint) {
  struct Read {
    int64_t rows;
    uint64_t fingerprint;
  };
  const Read first = world.broadcast_value(Read{rows, fingerprint}, 0);
  comm::fail_together(world, [&] {
    VALIDATE(first.rows == rows && first.fingerprint == fingerprint, ExitCode::bad_data, what,
             " differs from what rank 0 has read (", rows, " rows here, ", first.rows,
             " there, or other tokens or fields): a file that changed while the job started, a "
             "stale cache "
             "of its file system, or another tokenizer; start again");
  });
}

}  // namespace

void require_same_program(const comm::CommView& world) {
  const std::string mine = base::build_id();
  const std::string first = world.broadcast(mine, 0);
  comm::fail_together(world, [&] {
    VALIDATE(first == mine, ExitCode::unfit_environment,
             "this rank runs another build of Trireme than rank 0 (build ID ", mine, ", there ",
             first,
             "): a program that was replaced while the job started, a stale cache of its file "
             "system, or another installation on this node");
  });
}

void require_same_deck(const comm::CommView& world, const std::string& deck) {
  const std::string first = world.broadcast(deck, 0);
  comm::fail_together(world, [&] {
    if (first == deck) return;
    const auto changes =
        config::changed_keys(config::parse_deck(first, "rank 0's deck"), config::parse_deck(deck));
    std::string keys = config::describe(changes, config::KeyKind::meaning);
    const std::string conduct = config::describe(changes, config::KeyKind::conduct);
    if (!keys.empty() && !conduct.empty()) keys += '\n';
    throw UserError(
        ExitCode::configuration,
        base::text("this rank's deck is not that of rank 0 (rank 0's value -> this rank's):\n",
                   keys + conduct,
                   "\n: give every rank the same deck and overrides; start again when the file has "
                   "changed meanwhile"));
  });
}

text::Tokenizer load_same_tokenizer(const comm::CommView& world, const config::Options& options) {
  auto tokenizer = load_tokenizer(options);
  const std::string mine = digest_of(tokenizer);
  const std::string first = world.broadcast(mine, 0);
  comm::fail_together(world, [&] {
    VALIDATE(first == mine, ExitCode::bad_data, "the tokenizer in ", options.tokenizer_path(),
             " is not that of rank 0 (digest ", mine, " here, ", first,
             " there): a file that changed while the job started, a stale cache of its file "
             "system, or another folder on this node; start again");
  });
  if (world.rank() == 0 && tokenizer.template_asks_for_date() && !options.data.date.empty())
    log::info("chat template: strftime_now formats " + options.data.date + " (data.date)");
  return tokenizer;
}

void require_same_rows(const comm::CommView& world, const std::string& what,
                       const data::PromptSet& prompts) {
  require_same(world, what, prompts.size(),
               base::fnv_step(fingerprint(prompts), fields_fingerprint(prompts)));
}

void require_same_rows(const comm::CommView& world, const std::string& what,
                       const TrainingSet& rows) {
  require_same(world, what, rows.size(), fingerprint(rows));
}

std::string digest_of(const data::PromptSet& prompts) { return digest_text(fingerprint(prompts)); }
std::string digest_of(const TrainingSet& rows) { return digest_text(fingerprint(rows)); }
std::string digest_of_text(std::string_view text) { return digest_text(base::fnv1a(text)); }

std::string digest_of_fields(const data::PromptSet& prompts) {
  return digest_text(fields_fingerprint(prompts));
}

std::string digest_of(const config::ModelShape& shape) {
  Fingerprint all;
  all.add(config::to_config_json(shape));
  return digest_text(all.value());
}

std::string digest_of(const text::Tokenizer& tokenizer) {
  const trace::Guarding guard{trace::Guard::inputs};
  Fingerprint all;
  for (text::TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    all.add(tokenizer.token_bytes(id));
    all.add(tokenizer.is_special(id) ? "special" : "");
  }
  for (const text::TokenId id : tokenizer.eos_ids()) all.add(std::to_string(id));
  return digest_text(all.value());
}

std::string digest_of_reading(const text::Tokenizer& tokenizer) {
  return digest_text(tokenizer.reading_digest());
}

}  // namespace trireme::learn
