#include "trireme/learn/same_inputs.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/program.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/base/wire.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/config/changes.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

// Of texts that are told apart from other texts with the same bytes one behind the other.
class Fingerprint {
 public:
  void add(std::string_view bytes) {
    value_ = base::fnv_step(base::fnv1a(bytes, value_), bytes.size());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = base::fnv_basis;
};

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
  }
  return all.value();
}

std::string as_text(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

// Of weight files: both ends whole, which is where formats have their headers, and pieces spread
// evenly over what lies between.
constexpr uint64_t end_bytes = 65536;
constexpr uint64_t piece_bytes = 4096;
constexpr uint64_t pieces = 512;
constexpr uint64_t largest_header = uint64_t{100} << 20;  // as the format has it

// A safetensors header, where the file is one: its length stands in front. It names every tensor
// with its type, shape and place.
uint64_t header_bytes(const std::string& beginning, uint64_t size) {
  uint64_t length = 0;
  if (beginning.size() < sizeof length) return 0;
  std::memcpy(&length, beginning.data(), sizeof length);
  return length < size - sizeof length ? std::min(length + sizeof length, largest_header) : 0;
}

void add_file(Fingerprint& all, const std::filesystem::path& file) {
  const base::FileWork work{"read", file};
  const uint64_t size = std::filesystem::file_size(file);
  all.add(file.filename().string());
  all.add(std::to_string(size));
  std::ifstream in(file, std::ios::binary);
  const auto read = [&](uint64_t offset, uint64_t bytes) {
    std::string part(std::min(bytes, size - offset), '\0');
    in.seekg(static_cast<std::streamoff>(offset));
    in.read(part.data(), static_cast<std::streamsize>(part.size()));
    VALIDATE(in.good(), ExitCode::io_error, "cannot read ", file.string());
    all.add(part);
    return part;
  };
  const std::string beginning = read(0, end_bytes);
  if (const uint64_t header = header_bytes(beginning, size); header > end_bytes)
    read(end_bytes, header - end_bytes);
  if (size <= pieces * piece_bytes) {
    if (size > end_bytes) read(end_bytes, size);
    return;
  }
  for (uint64_t i = 1; i < pieces; ++i) read(size / pieces * i, piece_bytes);
  read(size - end_bytes, end_bytes);
}

std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder) {
  if (std::filesystem::is_regular_file(folder)) return {folder};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto kind = entry.path().extension();
    if (kind == ".safetensors" || kind == ".gguf") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
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

std::string digest_of(const data::PromptSet& prompts) { return as_text(fingerprint(prompts)); }
std::string digest_of(const TrainingSet& rows) { return as_text(fingerprint(rows)); }
std::string digest_of_text(std::string_view text) { return as_text(base::fnv1a(text)); }

std::string digest_of_fields(const data::PromptSet& prompts) {
  return as_text(fields_fingerprint(prompts));
}

std::string digest_of(const config::ModelShape& shape) {
  Fingerprint all;
  all.add(config::to_config_json(shape));
  return as_text(all.value());
}

std::string digest_of(const text::Tokenizer& tokenizer) {
  const trace::Guarding guard{trace::Guard::inputs};
  Fingerprint all;
  for (text::TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    all.add(tokenizer.token_bytes(id));
    all.add(tokenizer.is_special(id) ? "special" : "");
  }
  for (const text::TokenId id : tokenizer.eos_ids()) all.add(std::to_string(id));
  return as_text(all.value());
}

std::string digest_of_model(const std::filesystem::path& folder) {
  const trace::Region region{"digest of a model", trace::no_argument, trace::Category::io};
  const trace::Guarding guard{trace::Guard::inputs};
  Fingerprint all;
  for (const auto& file : weight_files(folder)) add_file(all, file);
  return "pieces:" + as_text(all.value());
}

}  // namespace trireme::learn
