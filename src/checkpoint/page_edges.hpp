// What of a rank's ranges does not fill a page of data.h5, written by one rank per page.
//
// Clients of a network file system keep pages, not bytes: one that holds a page may write all of it
// back, and with it what a rank on another node has changed there since (Linux NFS does so for a
// file that it may also read, or whose page it has whole in its cache). So no page of the file has
// two writers: ranks write the whole pages inside their ranges, and send the rest to the page's
// owner.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/comm/comm.hpp"

namespace trireme::checkpoint {

// Consecutive bytes inside one page.
struct PageEdge {
  int64_t offset = 0;  // in the file
  std::string bytes;
  static constexpr auto fields = std::tuple{&PageEdge::offset, &PageEdge::bytes};
  int64_t end() const { return offset + static_cast<int64_t>(bytes.size()); }
};

// The largest page of any rank's machine, in bytes. Collective.
int64_t agreed_page_bytes(const comm::CommView& comm);

// Sends every edge to the owner of its page; returns those of the pages that this rank owns, in the
// order of the file, neighbours joined. Collective.
std::vector<PageEdge> edges_of_my_pages(const comm::CommView& comm,
                                        const std::vector<PageEdge>& mine, int64_t page_bytes);

}  // namespace trireme::checkpoint
