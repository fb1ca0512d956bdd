// Reading the files of a set, with the processes that read the same ones at the same time: each
// parses every record and encodes a share of them.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "data/record.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/base/wire.hpp"

namespace trireme::data {

// What encoding makes of a record.
template <class Made>
struct FromLine {
  uint64_t source = 0;  // hash of the line; 0: it could not be encoded
  Made made;
  static constexpr auto fields = std::tuple{&FromLine::source, &FromLine::made};
};
template <class Made>
struct EncodedShare {
  bool more = false;  // this process has not come to the end of its file
  std::vector<FromLine<Made>> lines;
  static constexpr auto fields = std::tuple{&EncodedShare::more, &EncodedShare::lines};
};

// Records of one file that are parsed, then encoded together.
template <class Made>
class Block {
 public:
  struct Line {
    Record record;
    Origin origin;
    uint64_t source;
    Made made;
  };

  // The next lines, `room` at most; false: the file has no more, or there is no room.
  bool read(JsonlReader& reader, const std::string& file, int32_t number, int64_t room) {
    lines.clear();
    while (std::ssize(lines) < room) {
      const auto text = reader.next();
      if (!text) return false;
      lines.push_back(
          {Record(*text, file, reader.line()), {number, reader.line()}, base::fnv1a(*text), {}});
    }
    return room > 0;
  }

  // make(record) -> Made. Returns whether a process of the team has more lines than these; `more`:
  // this one has.
  template <class Make>
  bool encode(const EncodingTeam& team, bool more, const Make& make) {
    const auto size = static_cast<size_t>(team.size);
    std::vector<EncodedShare<Made>> all(size);
    if (team.gather) {
      const auto gathered =
          team.gather(base::to_bytes(share(static_cast<size_t>(team.rank), size, more, make)));
      std::ranges::transform(gathered, all.begin(), [](const std::string& bytes) {
        return base::from_bytes<EncodedShare<Made>>(bytes);
      });
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      auto& theirs = all[i % size].lines;
      const bool taken = i / size < theirs.size() && theirs[i / size].source == lines[i].source;
      lines[i].made = taken ? std::move(theirs[i / size].made) : make(lines[i].record);
    }
    return team.gather ? std::ranges::any_of(all, &EncodedShare<Made>::more) : more;
  }

  std::vector<Line> lines;

 private:
  template <class Make>
  EncodedShare<Made> share(size_t rank, size_t size, bool more, const Make& make) const {
    EncodedShare<Made> out{more, {}};
    for (size_t i = rank; i < lines.size(); i += size) {
      try {
        out.lines.push_back({lines[i].source, make(lines[i].record)});
      } catch (const UserError&) {
        out.lines.emplace_back();  // every process says it when it comes to this line
      }
    }
    return out;
  }
};

// Calls use(record, origin, make(record)) -> bool (kept) for every record of all files, up to
// max_samples kept ones per file, and counts the rows. Throws UserError(bad_data) when nothing is
// left.
template <class Made, class Make, class Use>
void read_together(const SetOptions& options, SetCounts& counts, const EncodingTeam& team,
                   const Make& make, const Use& use) {
  constexpr int64_t records_of_block = 8192;
  check_files(options);
  for (size_t file = 0; file < options.files.size(); ++file) {
    JsonlReader reader(options.files[file]);
    int64_t& rows = counts.rows.emplace_back(0);
    Block<Made> block;
    for (bool mine = true, any = true; any;) {
      const int64_t room = options.max_samples < 0
                               ? records_of_block
                               : std::min(records_of_block, options.max_samples - rows);
      mine = block.read(reader, options.files[file].string(), static_cast<int32_t>(file),
                        mine ? room : 0);
      any = block.encode(team, mine, make);
      for (auto& line : block.lines) {
        if (use(line.record, line.origin, std::move(line.made))) ++rows;
      }
    }
  }
  check_rows(options, counts);
}

}  // namespace trireme::data
