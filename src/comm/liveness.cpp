#include "trireme/comm/liveness.hpp"

#include <algorithm>

#include "trireme/base/text.hpp"

namespace trireme::comm {
namespace {

constexpr size_t most_named = 4;

std::string name_of(size_t rank, const LifeSign& sign) {
  return base::text("rank ", rank, sign.host.empty() ? std::string{} : " (" + sign.host + ")");
}

std::string and_more(size_t named) {
  return named > most_named ? base::text(" and ", named - most_named, " more") : std::string{};
}

// "rank 1 (n1): in ...; rank 2 (n1): in ... and 3 more"
std::string list(std::span<const RankLife> ranks, const std::vector<size_t>& which,
                 bool with_times) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(which.size(), most_named); ++i) {
    const LifeSign& sign = ranks[which[i]].sign;
    std::string part = base::text(name_of(which[i], sign), " ", place_of(sign));
    if (with_times) part += base::text(", for ", base::human_seconds(sign.silent));
    parts.push_back(part);
  }
  return base::join(parts, "; ") + and_more(which.size());
}

std::string who_waits(std::span<const RankLife> ranks, const std::vector<size_t>& guilty) {
  std::vector<size_t> waiting;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool blamed = std::find(guilty.begin(), guilty.end(), rank) != guilty.end();
    if (!blamed && ranks[rank].sign.waiting) waiting.push_back(rank);
  }
  if (waiting.empty()) return {};
  return base::text(
      "; ", waiting.size(), " of ", ranks.size(),
      waiting.size() == 1 ? " ranks waits: " : " ranks wait: ", list(ranks, waiting, false));
}

std::optional<std::string> not_heard(std::span<const RankLife> ranks, double deadline) {
  std::vector<size_t> gone;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (deadline > 0 && ranks[rank].unheard > deadline) gone.push_back(rank);
  }
  if (gone.empty()) return std::nullopt;
  return base::text(gone.size() == 1 ? "a rank has" : "ranks have", " not been heard of for ",
                    base::human_seconds(ranks[gone.front()].unheard),
                    " (the process is stopped, or its node or network is gone): ",
                    list(ranks, gone, false), who_waits(ranks, gone));
}

std::optional<std::string> no_progress(std::span<const RankLife> ranks,
                                       const Deadlines& deadlines) {
  std::vector<size_t> stuck;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const LifeSign& sign = ranks[rank].sign;
    const double deadline = deadline_of(sign, deadlines);
    if (!sign.waiting && deadline > 0 && sign.silent > deadline) stuck.push_back(rank);
  }
  if (stuck.empty()) return std::nullopt;
  return base::text(stuck.size() == 1 ? "a rank makes" : "ranks make",
                    " no progress and did not arrive: ", list(ranks, stuck, true),
                    who_waits(ranks, stuck));
}

std::optional<std::string> all_wait(std::span<const RankLife> ranks, double deadline) {
  std::vector<size_t> all;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const LifeSign& sign = ranks[rank].sign;
    if (deadline <= 0 || !sign.waiting || sign.silent <= deadline) return std::nullopt;
    all.push_back(rank);
  }
  return base::text(
      "all ranks wait for each other for more than ", base::human_seconds(deadline),
      " (they called different collectives, or a message was lost): ", list(ranks, all, false));
}

}  // namespace

double deadline_of(const LifeSign& sign, const Deadlines& deadlines) {
  if (!sign.io) return deadlines.usual;
  return deadlines.io > 0 ? std::max(deadlines.io, deadlines.usual) : 0;
}

std::string place_of(const LifeSign& sign) {
  std::string out = sign.where.empty() ? "outside of all regions" : "in " + sign.where;
  if (!sign.call.empty()) out += ", in " + sign.call;
  return out;
}

std::optional<std::string> find_hang(std::span<const RankLife> ranks, const Deadlines& deadlines) {
  if (auto gone = not_heard(ranks, deadlines.usual)) return gone;
  if (auto stuck = no_progress(ranks, deadlines)) return stuck;
  return all_wait(ranks, deadlines.usual);
}

}  // namespace trireme::comm
