#include "page_edges.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint {
namespace {

void append(std::string& to, const PageEdge& edge) {
  const int64_t header[] = {edge.offset, static_cast<int64_t>(edge.bytes.size())};
  to.append(reinterpret_cast<const char*>(header), sizeof header);
  to += edge.bytes;
}

void take_all(const std::string& from, std::vector<PageEdge>& into) {
  for (size_t at = 0; at < from.size();) {
    int64_t header[2];
    std::memcpy(header, from.data() + at, sizeof header);
    at += sizeof header;
    into.push_back({header[0], from.substr(at, static_cast<size_t>(header[1]))});
    at += static_cast<size_t>(header[1]);
  }
}

}  // namespace

int64_t agreed_page_bytes(const comm::CommView& comm) { return comm.max<int64_t>(::sysconf(_SC_PAGESIZE)); }

std::vector<PageEdge> edges_of_my_pages(const comm::CommView& comm, const std::vector<PageEdge>& mine, int64_t page_bytes) {
  std::vector<std::string> to(static_cast<size_t>(comm.size()));
  for (const PageEdge& edge : mine) append(to[static_cast<size_t>(edge.offset / page_bytes % comm.size())], edge);
  std::vector<PageEdge> received;
  for (const std::string& from : comm.all_to_all(to)) take_all(from, received);
  std::sort(received.begin(), received.end(), [](const PageEdge& a, const PageEdge& b) { return a.offset < b.offset; });
  std::vector<PageEdge> joined;
  for (PageEdge& edge : received) {
    if (!joined.empty() && joined.back().end() == edge.offset) {
      joined.back().bytes += edge.bytes;
    } else {
      joined.push_back(std::move(edge));
    }
  }
  return joined;
}

}  // namespace trireme::checkpoint
