/* The box's processes as images on the disk, by CRIU (docs/adr/0017). */
#include "engine/shim/shim.h"

int shim_memory_facts(const struct shim *s, struct hf_buf *b)
{
    return hf_kv_add_u64(b, "uid_base", s->uid_base);
}

int shim_memory_dump(struct shim *s, int dir_fd, struct hf_err *err)
{
    (void)dir_fd;
    return hf_err_set(err, -EOPNOTSUPP, "%s", s->spec.criu[0] ? "not yet" : "this host has no CRIU");
}
