// Reading of the table and advice, in the manner of a load-balance report, with a figure.
#include <algorithm>
#include <numeric>

#include "trireme/base/text.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::trace {

namespace {

// "trainer" of "trainer, reward": the key of [ranks] that sizes this group
std::string first_role(const RoleTable& table) {
  return table.role.substr(0, table.role.find(','));
}

double busy(const RoleTable& table) { return table.iterations.busy(); }

double idle_share(const RoleTable& table) {
  return table.iterations.seconds > 0 ? table.iterations.wait / table.iterations.seconds : 0;
}

bool has_role(const RoleTable& table, const char* role) {
  return (", " + table.role + ",").find(base::text(" ", role, ",")) != std::string::npos;
}

std::string percent(double share) { return base::fixed(100 * share, 0) + " %"; }

// Ranks that no role uses are a group of the table, but [ranks] has no key for them.
bool is_role(const RoleTable& table) { return table.role != "idle"; }
int fewest_ranks(const RoleTable& table) { return is_role(table) ? 1 : 0; }

// Ranks per role in proportion to its work (rank-seconds), at least one each, by the largest
// remainder.
std::vector<int> balanced_split(const Table& table) {
  int ranks = 0;
  double work = 0;
  for (const RoleTable& role : table) {
    ranks += role.ranks;
    work += busy(role) * role.ranks;
  }
  std::vector<int> split;
  std::vector<double> remainder;
  for (const RoleTable& role : table) {
    const double ideal = work > 0 ? busy(role) * role.ranks / work * ranks : role.ranks;
    split.push_back(std::max(fewest_ranks(role), static_cast<int>(ideal)));
    remainder.push_back(ideal - split.back());
  }
  for (int left = ranks - std::accumulate(split.begin(), split.end(), 0); left != 0;) {
    const int one = left > 0 ? 1 : -1;
    size_t best = split.size();
    for (size_t i = 0; i < split.size(); ++i) {
      if (split[i] + one < fewest_ranks(table[i])) continue;
      if (best == split.size() || one * remainder[i] > one * remainder[best]) best = i;
    }
    split[best] += one;
    remainder[best] -= one;
    left -= one;
  }
  return split;
}

// Seconds of the iterations with that split, if work divides evenly over ranks.
double expected_seconds(const Table& table, const std::vector<int>& split) {
  double longest = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (split[i] > 0) longest = std::max(longest, busy(table[i]) * table[i].ranks / split[i]);
  }
  return longest;
}

std::string split_text(const Table& table, const std::vector<int>& split) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < table.size(); ++i) {
    if (is_role(table[i]))
      parts.push_back(base::text("ranks.", first_role(table[i]), "=", split[i]));
  }
  return base::join(parts, " ");
}

// One group waited for another: which, how long, what to try.
std::string role_note(const Table& table, const RoleTable& waiting, RolesRun run) {
  const RoleTable* busiest = nullptr;
  for (const RoleTable& role : table) {
    if (&role != &waiting && (!busiest || busy(role) > busy(*busiest))) busiest = &role;
  }
  std::string note =
      base::text("NOTE: the ", waiting.role, " ranks waited ", percent(idle_share(waiting)),
                 " of the time, because the ", busiest->role, " ranks had more to do. ");
  if (run == RolesRun::in_turns) {
    return note +
           "These roles take turns: let them share all ranks (leave [ranks] out), or overlap them "
           "with train.async_depth=1";
  }
  const auto split = balanced_split(table);
  // Waiting that all of them share (answers on their way, the slowest rank) no split
  // shortens.
  const double now = busiest->iterations.seconds;
  const double expected = now - (busy(*busiest) - expected_seconds(table, split));
  if (expected > 0.97 * now) return note + "No other split of these ranks would be better";
  return note + base::text("Try ", split_text(table, split), " (about ",
                           base::fixed(expected / now, 2),
                           " of the present time, if the work divides evenly)");
}

// Ranks of one role that differ: the region with the largest loss that is not itself waiting for
// others.
std::string imbalance_note(const RoleTable& table) {
  const TableRow* worst = nullptr;
  for (const TableRow& row : table.rows) {
    const double loss = row.seconds.max - row.seconds.avg;
    const bool passive = row.category == Category::wait || row.category == Category::communication;
    if (passive || row.seconds.max < 1.25 * row.seconds.avg || loss < 0.02 * table.seconds.avg)
      continue;
    // The deepest region that still shows it says most.
    if (!worst || loss >= worst->seconds.max - worst->seconds.avg ||
        row.path.starts_with(worst->path + "/"))
      worst = &row;
  }
  if (!worst) return "";
  return base::text("NOTE: '", worst->path, "' took ", base::human_seconds(worst->seconds.max),
                    " on the slowest of the ", table.role, " ranks and ",
                    base::human_seconds(worst->seconds.avg),
                    " on average: work or machines are uneven (trace.json shows which rank)");
}

}  // namespace

std::vector<std::string> notes(const Table& table, RolesRun run, double threshold) {
  std::vector<std::string> out;
  if (table.size() > 1) {
    const auto most = std::ranges::max_element(table, {}, idle_share);
    if (idle_share(*most) > threshold) out.push_back(role_note(table, *most, run));
  }
  for (const RoleTable& role : table) {
    if (std::string note = imbalance_note(role); role.ranks > 1 && !note.empty())
      out.push_back(std::move(note));
  }
  const int64_t dropped =
      std::accumulate(table.begin(), table.end(), int64_t{0},
                      [](int64_t sum, const RoleTable& r) { return sum + r.dropped; });
  if (dropped > 0)
    out.push_back(base::text("NOTE: trace.json leaves out ", dropped,
                             " of the shortest regions (the table above counts all)"));
  return out;
}

std::string overlap_text(const Table& table, RolesRun run) {
  const auto longest = std::ranges::max_element(
      table, {}, [](const RoleTable& role) { return role.iterations.seconds; });
  if (table.size() < 2 || longest->iterations.seconds <= 0) return "";
  std::vector<std::string> idle;
  double generators = 0, trainers = 0, both = 0;  // work of the busiest ranks of each kind
  for (const RoleTable& role : table) {
    if (!is_role(role)) continue;
    idle.push_back(base::text(role.role, " ", percent(idle_share(role))));
    const bool generates = has_role(role, "generator"), trains = has_role(role, "trainer");
    if (generates || trains) {
      double& kind = generates && trains ? both : generates ? generators : trainers;
      kind = std::max(kind, busy(role));
    }
  }
  const auto count = static_cast<double>(longest->iterations.count);
  std::string out =
      base::text("an iteration took ", base::human_seconds(longest->iterations.seconds / count),
                 "; idle: ", base::join(idle, ", "));
  const double in_turns = std::max(both, generators + trainers);
  if (run == RolesRun::in_turns || in_turns <= 0) return out;
  return out + base::text("; with generators and trainers in turns (train.async_depth = 0) about ",
                          base::human_seconds(in_turns / count), ", ",
                          base::fixed(in_turns / longest->iterations.seconds, 2), " times as long");
}

}  // namespace trireme::trace
