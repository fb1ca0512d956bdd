#include "trireme/config/ranks.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

namespace {

enum class Form { empty, count, list };

struct RankSet {
  Form form = Form::empty;
  int count = 0;
  std::vector<int> ranks;
};

[[noreturn]] void malformed(std::string_view key, std::string_view text) {
  throw UserError(ExitCode::configuration,
                  base::text("ranks.", key, " = \"", text,
                             "\" is no set of ranks: write a count (\"4\"), ranks ",
                             "(\"0-3,6\") or nodes (\"nodes:0-1\")"));
}

int to_number(std::string_view key, std::string_view text, std::string_view part) {
  int value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc{} || end != part.data() + part.size() || value < 0) malformed(key, text);
  return value;
}

// "0-3,6" -> {0,1,2,3,6}; every number below `limit`, none twice
std::vector<int> to_list(std::string_view key, std::string_view text, std::string_view list,
                         int limit, std::string_view what) {
  std::vector<int> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view part = list.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const int first = to_number(key, text, part.substr(0, dash));
    const int last =
        dash == std::string_view::npos ? first : to_number(key, text, part.substr(dash + 1));
    VALIDATE(first <= last, ExitCode::configuration, "ranks.", key, " = \"", text, "\": the range ",
             part, " runs backwards");
    VALIDATE(last < limit, ExitCode::configuration, "ranks.", key, " = \"", text,
             "\": there is no ", what, " ", last, " (this job has ", limit, " ", what,
             "s, numbered from 0): start more, or name fewer");
    for (int i = first; i <= last; ++i) out.push_back(i);
    begin = end + 1;
  }
  std::sort(out.begin(), out.end());
  const auto twice = std::adjacent_find(out.begin(), out.end());
  VALIDATE(twice == out.end(), ExitCode::configuration, "ranks.", key, " = \"", text, "\" names ",
           what, " ", twice == out.end() ? 0 : *twice, " twice");
  return out;
}

std::vector<int> ranks_of_nodes(const std::vector<int>& nodes, std::span<const int> node_of_rank,
                                const std::vector<int>& node_order) {
  std::vector<int> out;
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto at =
        std::find(node_order.begin(), node_order.end(), node_of_rank[rank]) - node_order.begin();
    if (std::binary_search(nodes.begin(), nodes.end(), static_cast<int>(at)))
      out.push_back(static_cast<int>(rank));
  }
  return out;
}

// Nodes in the order of their lowest rank.
std::vector<int> order_of_nodes(std::span<const int> node_of_rank) {
  std::vector<int> order;
  for (const int node : node_of_rank) {
    if (std::find(order.begin(), order.end(), node) == order.end()) order.push_back(node);
  }
  return order;
}

RankSet parse(std::string_view key, std::string_view text, int world,
              std::span<const int> node_of_rank) {
  RankSet set;
  std::string compact;
  for (const char c : text) {
    if (c != ' ' && c != '\t') compact += c;
  }
  if (compact.empty()) return set;
  constexpr std::string_view prefix = "nodes:";
  set.form = Form::list;
  if (compact.starts_with(prefix)) {
    const std::vector<int> order = order_of_nodes(node_of_rank);
    const auto nodes = to_list(key, text, std::string_view(compact).substr(prefix.size()),
                               static_cast<int>(order.size()), "node");
    set.ranks = ranks_of_nodes(nodes, node_of_rank, order);
  } else if (compact.find_first_of(",-") != std::string::npos) {
    set.ranks = to_list(key, text, compact, world, "rank");
  } else {
    set.form = Form::count;
    set.count = to_number(key, text, compact);
    VALIDATE(set.count > 0, ExitCode::configuration, "ranks.", key, " = \"", text,
             "\": a role needs at least one rank (leave the key out to ",
             "share the ranks of the others)");
    VALIDATE(set.count <= world, ExitCode::configuration, "ranks.", key, " = \"", text,
             "\": this job has ", world, " ranks: start it with more (mpirun -n ", set.count,
             "), or ask for fewer");
  }
  return set;
}

// Rule 2 of resolve_ranks: the counts one after another on the ranks that no list names, or all on
// the first ranks.
void place_counts(std::array<RankSet*, 3> sets, int world) {
  std::vector<char> named(static_cast<size_t>(world), 0);
  int wanted = 0;
  for (const RankSet* set : sets) {
    for (const int rank : set->ranks) named[static_cast<size_t>(rank)] = 1;
    if (set->form == Form::count) wanted += set->count;
  }
  std::vector<int> unnamed;
  for (int rank = 0; rank < world; ++rank) {
    if (!named[static_cast<size_t>(rank)]) unnamed.push_back(rank);
  }
  const bool disjoint = wanted <= static_cast<int>(unnamed.size());
  size_t next = 0;
  for (RankSet* set : sets) {
    if (set->form != Form::count) continue;
    set->ranks.resize(static_cast<size_t>(set->count));
    if (disjoint) {
      std::copy_n(unnamed.begin() + static_cast<std::ptrdiff_t>(next), set->count,
                  set->ranks.begin());
      next += static_cast<size_t>(set->count);
    } else {
      std::iota(set->ranks.begin(), set->ranks.end(), 0);
    }
  }
}

std::vector<int> others(const std::vector<int>& taken, const std::vector<int>& also_taken,
                        int world) {
  std::vector<int> out;
  for (int rank = 0; rank < world; ++rank) {
    const auto in = [rank](const std::vector<int>& set) {
      return std::find(set.begin(), set.end(), rank) != set.end();
    };
    if (!in(taken) && !in(also_taken)) out.push_back(rank);
  }
  return out;
}

}  // namespace

RoleMap resolve_ranks(const RanksOptions& options, int world, std::span<const int> node_of_rank) {
  EXPECT(world > 0 && static_cast<int>(node_of_rank.size()) == world);
  RankSet trainer = parse("trainer", options.trainer, world, node_of_rank);
  RankSet generator = parse("generator", options.generator, world, node_of_rank);
  RankSet reward = parse("reward", options.reward, world, node_of_rank);
  const bool trainer_given = trainer.form != Form::empty;
  place_counts({&trainer, &reward, &generator}, world);

  std::vector<int> all(static_cast<size_t>(world));
  std::iota(all.begin(), all.end(), 0);
  if (trainer.form == Form::empty && generator.form == Form::empty) {
    trainer.ranks = all;
    generator.ranks = all;
  } else if (trainer.form == Form::empty || generator.form == Form::empty) {
    RankSet& unset = trainer.form == Form::empty ? trainer : generator;
    const RankSet& given = trainer.form == Form::empty ? generator : trainer;
    unset.ranks = others(given.ranks, reward.ranks, world);
    if (unset.ranks.empty()) unset.ranks = given.ranks;
  }
  if (reward.form == Form::empty) reward.ranks = trainer_given ? trainer.ranks : all;
  return RoleMap{trainer.ranks, generator.ranks, reward.ranks};
}

std::string rank_ranges(std::span<const int> ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    if (!out.empty()) out += ",";
    out += std::to_string(ranks[i]);
    if (j > i) out += "-" + std::to_string(ranks[j]);
    i = j + 1;
  }
  return out;
}

std::string describe(const RoleMap& roles) {
  return base::text("trainer ", rank_ranges(roles.trainer), ", generator ",
                    rank_ranges(roles.generator), ", reward ", rank_ranges(roles.reward));
}

}  // namespace trireme::config
