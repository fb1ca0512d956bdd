#include "trireme/learn/exchange.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/wire.hpp"
#include "trireme/ppo/balance.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {

std::vector<int64_t> lengths_of(const SequenceList& sequences) {
  std::vector<int64_t> lengths;
  lengths.reserve(sequences.size());
  for (const ListedSequence& sequence : sequences) lengths.push_back(sequence.tokens);
  return lengths;
}

std::vector<int> spread_over(const SequenceList& sequences, const std::vector<int>& targets) {
  const auto bins =
      ppo::interleaved_bins(lengths_of(sequences), static_cast<int64_t>(targets.size()));
  std::vector<int> rank_of(sequences.size(), 0);
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    for (const int64_t item : bins[bin]) rank_of[static_cast<size_t>(item)] = targets[bin];
  }
  return rank_of;
}

SequenceList Exchange::list(const Samples& mine) const {
  SequenceList own;
  for (int64_t i = 0; i < mine.size(); ++i)
    own.push_back({mine.id[static_cast<size_t>(i)], mine.length(i)});
  SequenceList sequences = ranks_.all_gather<ListedSequence>(own);
  std::sort(sequences.begin(), sequences.end(),
            [](const ListedSequence& a, const ListedSequence& b) { return a.id < b.id; });
  const auto twin = std::adjacent_find(
      sequences.begin(), sequences.end(),
      [](const ListedSequence& a, const ListedSequence& b) { return a.id == b.id; });
  if (twin != sequences.end())
    throw InternalError(base::text("two sequences have the id ", twin->id));
  return sequences;
}

Samples Exchange::move(const Samples& mine, const SequenceList& sequences,
                       const std::vector<int>& rank_of) {
  const trace::Region region{"exchange samples", trace::no_argument,
                             trace::Category::communication};
  std::unordered_map<uint64_t, int> target;
  for (size_t i = 0; i < sequences.size(); ++i) target.emplace(sequences[i].id, rank_of[i]);

  std::vector<Samples> parcels(static_cast<size_t>(ranks_.size()));
  for (int64_t i = 0; i < mine.size(); ++i) {
    parcels[static_cast<size_t>(target.at(mine.id[static_cast<size_t>(i)]))].append(mine, i);
  }
  std::vector<std::string> messages(parcels.size());
  for (size_t r = 0; r < parcels.size(); ++r) {
    if (parcels[r].size() == 0) continue;
    messages[r] = parcels[r].to_bytes();
    if (static_cast<int>(r) == ranks_.rank()) continue;
    counters_.sequences_sent += parcels[r].size();
    counters_.bytes_sent += static_cast<int64_t>(messages[r].size());
    ++counters_.messages;
  }
  Samples samples;
  for (const auto& part : ranks_.all_to_all(messages)) {
    if (part.empty()) continue;
    samples.append(Samples::from_bytes(part));
  }
  return samples.sorted();
}

Samples Exchange::spread(const Samples& mine, const std::vector<int>& targets) {
  const SequenceList all = list(mine);
  return move(mine, all, spread_over(all, targets));
}

SharedOut Exchange::share_out(const Samples& mine) {
  std::vector<int> everybody(static_cast<size_t>(ranks_.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  SharedOut out;
  out.sequences = list(mine);
  out.share = move(mine, out.sequences, spread_over(out.sequences, everybody));
  const std::unordered_set<uint64_t> own(mine.id.begin(), mine.id.end());
  std::vector<int32_t> home;
  for (const ListedSequence& sequence : out.sequences)
    home.push_back(own.contains(sequence.id) ? ranks_.rank() : 0);
  ranks_.all_reduce(home.data(), std::ssize(home), comm::DType::i32, comm::Op::sum);
  out.home.assign(home.begin(), home.end());
  return out;
}

Samples Exchange::give_back(const SharedOut& shared) {
  return move(shared.share, shared.sequences, shared.home);
}

Delivery::Delivery(const comm::CommView& world, std::vector<int> receivers,
                   const comm::MailLimits& limits)
    : receivers_(std::move(receivers)), mail_(world, "rollouts", limits) {}

void Delivery::send(const Samples& mine, const SequenceList& sequences,
                    const std::vector<int>& owner, int holder, int holders) {
  std::unordered_map<uint64_t, size_t> receiver_of;
  for (size_t i = 0; i < sequences.size(); ++i)
    receiver_of.emplace(sequences[i].id, static_cast<size_t>(owner[i]));
  std::vector<Parcel> parcels(receivers_.size());
  for (int64_t i = 0; i < mine.size(); ++i)
    parcels[receiver_of.at(mine.id[static_cast<size_t>(i)])].samples.append(mine, i);
  for (size_t r = 0; r < parcels.size(); ++r) {
    const bool tells = static_cast<int>(r) % holders == holder;
    if (tells) parcels[r].sequences = sequences;
    if (tells || parcels[r].samples.size() > 0) mail_.post(receivers_[r], parcels[r]);
  }
}

bool Delivery::receive(Rollout& rollout, int receiver,
                       const std::function<std::vector<int>(const SequenceList&)>& owners) {
  const auto whole = [&] {
    return !rollout.owner.empty() &&
           rollout.samples.size() ==
               std::count(rollout.owner.begin(), rollout.owner.end(), receiver);
  };
  while (!whole()) {
    const auto parcel = mail_.take();
    if (!parcel) return false;
    rollout.samples.append(parcel->samples);
    if (parcel->sequences.empty()) continue;
    rollout.sequences = parcel->sequences;
    rollout.owner = owners(rollout.sequences);
  }
  rollout.samples = rollout.samples.sorted();
  return true;
}

std::string to_stored(const Samples& samples) {
  return samples.size() == 0 ? std::string() : base::to_bytes(samples);
}

StoredSamples from_stored(std::string_view parts) {
  StoredSamples all;
  base::WireReader reader(parts, "the waiting rollout of the checkpoint");
  while (!reader.done()) {
    const auto part = reader.take<Samples>();
    (part.reward.empty() ? all.others : all.scored).append(part);
  }
  return all;
}

}  // namespace trireme::learn
