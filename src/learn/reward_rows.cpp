#include "torch/torch.hpp"

#include "trireme/learn/reward_rows.hpp"

#include <unordered_map>

#include "trireme/ppo/experience.hpp"

namespace trireme::learn {

RewardRows gather_rewards(const Samples& samples, const SequenceList& sequences, size_t parts,
                          const ppo::Sum& sum) {
  std::unordered_map<uint64_t, size_t> place_of;
  for (size_t i = 0; i < sequences.size(); ++i) place_of.emplace(sequences[i].id, i);
  const ppo::RewardTable mine = ppo::reward_table(samples);
  const size_t columns = 3 + parts;  // reward, length, truncated, then what each source gave
  RewardRows out;
  std::vector<double> all(columns * sequences.size(), 0.0);
  for (size_t i = 0; i < mine.reward.size(); ++i) {
    const size_t row = place_of.at(samples.id[i]);
    out.mine.push_back(static_cast<int64_t>(row));
    double* of_row = all.data() + columns * row;
    of_row[0] = double{mine.reward[i]};
    of_row[1] = static_cast<double>(mine.response_length[i]);
    of_row[2] = mine.truncated[i];
    for (size_t part = 0; part < parts; ++part)
      of_row[3 + part] = double{samples.reward_parts[part][i]};
  }
  sum(all);
  ppo::RewardTable& table = out.table;
  table.parts.resize(parts);
  for (size_t row = 0; row < sequences.size(); ++row) {
    const double* of_row = all.data() + columns * row;
    table.reward.push_back(static_cast<float>(of_row[0]));
    table.response_length.push_back(static_cast<int64_t>(of_row[1]));
    table.truncated.push_back(of_row[2] != 0);
    for (size_t part = 0; part < parts; ++part)
      table.parts[part].push_back(static_cast<float>(of_row[3 + part]));
  }
  return out;
}

}  // namespace trireme::learn
