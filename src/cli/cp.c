/* holdfast sandbox cp: files and folders into and out of a sandbox. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/id.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/files.h"
#include "cli/show.h"

#define DEPTH_MAX 64 /* nested folders */

static const struct hf_opt opts[] = {
    {"user", 'u', "NAME", "whose files they are in the sandbox (default: the template's, usually `user`)",
     NULL},
    {0},
};

/* "ID:/path": everything before the first ':' when that has no '/', so ./a:b is a local file. */
static bool split_remote(const char *arg, char **ret_id, const char **ret_path)
{
    const char *colon = strchr(arg, ':'), *slash = strchr(arg, '/');
    if (!colon || colon == arg || (slash && slash < colon))
        return false;
    *ret_id = hf_xstrndup(arg, (size_t)(colon - arg));
    *ret_path = colon + 1;
    return true;
}

static char *join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return hf_xasprintf("%s%s%s", dir, n == 0 || dir[n - 1] == '/' ? "" : "/", name);
}

/* Last component; "" for "/", "." and "..": there is no name to take over. */
static char *last_name(const char *path)
{
    size_t n = strlen(path);
    while (n && path[n - 1] == '/')
        n--;
    size_t start = n;
    while (start && path[start - 1] != '/')
        start--;
    struct hf_str s = {path + start, n - start};
    return hf_str_eq(s, ".") || hf_str_eq(s, "..") ? hf_xstrdup("") : hf_str_dup(s);
}

static void skip(struct hf_files *f, const char *path, const char *why)
{
    f->skipped++;
    hf_progress_end(&f->progress);
    hf_cli_say(f->cli, "holdfast: skipped %s: %s", path, why);
}

/* ---- into the sandbox ---- */

static int put_file(struct hf_files *f, int fd, const struct stat *st, const char *to, struct hf_err *err)
{
    return hf_files_put(f, fd, S_ISREG(st->st_mode) ? st->st_size : HF_FILES_UNKNOWN, to, err);
}

static int put_dir(struct hf_files *f, int fd, const char *from, const char *to, unsigned depth,
                   struct hf_err *err);

static int put_entry(struct hf_files *f, int dir_fd, const char *name, const char *from, const char *to,
                     unsigned depth, struct hf_err *err)
{
    struct stat st;
    hf_auto_free char *source = join(from, name), *target = join(to, name);
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return hf_err_set(err, -errno, "%s: %s", source, strerror(errno));
    if (S_ISLNK(st.st_mode) && (fstatat(dir_fd, name, &st, 0) < 0 || !S_ISREG(st.st_mode))) {
        skip(f, source, "a link to something that is no file");
        return 0;
    }
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        skip(f, source, "neither a file nor a folder");
        return 0;
    }
    hf_auto_close int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hf_err_set(err, -errno, "%s: %s", source, strerror(errno));
    return S_ISDIR(st.st_mode) ? put_dir(f, fd, source, target, depth + 1, err)
                               : put_file(f, fd, &st, target, err);
}

/* fd is the open folder (borrowed). */
static int put_dir(struct hf_files *f, int fd, const char *from, const char *to, unsigned depth,
                   struct hf_err *err)
{
    if (depth > DEPTH_MAX)
        return hf_err_set(err, -ELOOP, "%s: more than %d folders deep", from, DEPTH_MAX);
    int r = hf_files_mkdir(f, to, err);
    int copy = r < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (r < 0)
        return r;
    if (!d)
        return hf_err_set(err, -errno, "%s: %s", from, strerror(errno));
    for (struct dirent *e; r == 0 && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = put_entry(f, fd, e->d_name, from, to, depth, err);
    (void)closedir(d);
    return r;
}

static bool remote_is_dir(struct hf_files *f, const char *path)
{
    struct hf_err ignored = {0};
    json_t *entry = NULL;
    bool dir = hf_files_stat(f, path, &entry, &ignored) == 0 &&
               strcmp(hf_show_str(entry, "type"), "FILE_TYPE_DIRECTORY") == 0;
    json_decref(entry);
    f->cli->hint[0] = '\0';
    return dir;
}

/* As cp does: into an existing folder (or one named with a trailing slash), else under the name given. */
static int upload(struct hf_files *f, const char *from, const char *to, struct hf_err *err)
{
    struct stat st;
    bool is_stdin = strcmp(from, "-") == 0;
    hf_auto_free char *name = is_stdin ? hf_xstrdup("") : last_name(from), *target = NULL;
    hf_auto_close int fd = is_stdin ? -1 : open(from, O_RDONLY | O_CLOEXEC);
    if ((!is_stdin && fd < 0) || fstat(is_stdin ? STDIN_FILENO : fd, &st) < 0)
        return hf_err_set(err, -errno, "%s: %s", from, strerror(errno));
    bool into = *name && (to[0] == '\0' || to[strlen(to) - 1] == '/' || remote_is_dir(f, to));
    target = into ? join(to, name) : hf_xstrdup(to);
    if (S_ISDIR(st.st_mode))
        return put_dir(f, fd, from, *target ? target : ".", 0, err);
    if (!*target || target[strlen(target) - 1] == '/')
        return hf_err_set(err, -EISDIR, "name the file in the sandbox: '%s' is a folder", to);
    return put_file(f, is_stdin ? STDIN_FILENO : fd, &st, target, err);
}

/* ---- out of the sandbox ---- */

/* Under a temporary name first: a broken transfer leaves the old file, not half of the new one. */
static int get_file(struct hf_files *f, const char *from, int dir_fd, const char *name, struct hf_err *err)
{
    char id[9];
    hf_random_id(id, sizeof(id) - 1);
    hf_auto_free char *part = hf_xasprintf(".hf-%s.part", id);
    hf_auto_close int fd = openat(dir_fd, part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot write beside %s: %s", name, strerror(errno));
    int r = hf_files_get(f, from, fd, err);
    if (r == 0 && renameat(dir_fd, part, dir_fd, name) < 0)
        r = hf_err_set(err, -errno, "%s: %s", name, strerror(errno));
    if (r < 0)
        (void)unlinkat(dir_fd, part, 0);
    return r;
}

static int get_dir(struct hf_files *f, const char *from, int dir_fd, unsigned depth, struct hf_err *err);

/* name comes out of the sandbox: it must be one plain component, and no local link is followed. */
static int get_entry(struct hf_files *f, const json_t *entry, const char *from, int dir_fd, unsigned depth,
                     struct hf_err *err)
{
    const char *name = hf_show_str(entry, "name"), *type = hf_show_str(entry, "type");
    hf_auto_free char *source = join(from, name);
    bool link = *hf_show_str(entry, "symlinkTarget") != '\0';
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return hf_err_set(err, -EBADMSG, "the sandbox names a file '%s' in %s", name, from);
    if (strcmp(type, "FILE_TYPE_FILE") == 0)
        return get_file(f, source, dir_fd, name, err);
    if (strcmp(type, "FILE_TYPE_DIRECTORY") != 0 || link) {
        skip(f, source, link ? "a link to something that is no file" : "neither a file nor a folder");
        return 0;
    }
    if (mkdirat(dir_fd, name, 0777) < 0 && errno != EEXIST)
        return hf_err_set(err, -errno, "%s: %s", name, strerror(errno));
    hf_auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return hf_err_set(err, -errno, "%s: %s", name, strerror(errno));
    return get_dir(f, source, fd, depth + 1, err);
}

static int get_dir(struct hf_files *f, const char *from, int dir_fd, unsigned depth, struct hf_err *err)
{
    json_t *entries = NULL, *e;
    size_t i;
    if (depth > DEPTH_MAX)
        return hf_err_set(err, -ELOOP, "%s: more than %d folders deep", from, DEPTH_MAX);
    int r = hf_files_list(f, from, &entries, err);
    json_array_foreach(entries, i, e) if (r == 0) r = get_entry(f, e, from, dir_fd, depth, err);
    json_decref(entries);
    return r;
}

/* Opens the folder that a local target lies in and gives its last name. */
static int open_parent(const char *path, int *ret_fd, char **ret_name, struct hf_err *err)
{
    const char *slash = strrchr(path, '/');
    hf_auto_free char *dir = slash ? hf_xstrndup(path, (size_t)(slash - path) + 1) : hf_xstrdup(".");
    const char *name = slash ? slash + 1 : path;
    if (!*name)
        return hf_err_set(err, -EISDIR, "%s: no such folder", path);
    *ret_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*ret_fd < 0)
        return hf_err_set(err, -errno, "%s: %s", dir, strerror(errno));
    *ret_name = hf_xstrdup(name);
    return 0;
}

static int download_dir(struct hf_files *f, const char *from, const char *to, struct hf_err *err)
{
    if (mkdir(to, 0777) < 0 && errno != EEXIST)
        return hf_err_set(err, -errno, "%s: %s", to, strerror(errno));
    hf_auto_close int fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return hf_err_set(err, -errno, "%s: %s", to, strerror(errno));
    return get_dir(f, from, fd, 0, err);
}

static int download(struct hf_files *f, const char *from, const char *to, struct hf_err *err)
{
    struct stat st;
    json_t *entry = NULL;
    if (strcmp(to, "-") == 0)
        return hf_files_get(f, from, STDOUT_FILENO, err);
    int r = hf_files_stat(f, *from ? from : ".", &entry, err);
    if (r < 0)
        return r;
    bool dir = strcmp(hf_show_str(entry, "type"), "FILE_TYPE_DIRECTORY") == 0;
    hf_auto_free char *full = hf_xstrdup(hf_show_str(entry, "path"));
    json_decref(entry);
    /* The resolved path has a name even for "~" or ""; with a "." at the end the caller wants the content. */
    bool content = strcmp(from, ".") == 0 || (strlen(from) > 1 && strcmp(from + strlen(from) - 2, "/.") == 0);
    hf_auto_free char *name = content ? hf_xstrdup("") : last_name(full), *target = NULL, *leaf = NULL;
    bool into = *name && stat(to, &st) == 0 && S_ISDIR(st.st_mode);
    target = into ? join(to, name) : hf_xstrdup(to);
    if (dir)
        return download_dir(f, full, target, err);
    hf_auto_close int parent = -1;
    r = open_parent(target, &parent, &leaf, err);
    return r < 0 ? r : get_file(f, full, parent, leaf, err);
}

static int report(struct hf_cli *cli, const struct hf_files *f, bool to_stdout)
{
    char size[HF_HUMAN_MAX];
    if (cli->json && !to_stdout)
        (void)printf("{\"files\":%llu,\"bytes\":%llu,\"skipped\":%llu}\n", (unsigned long long)f->files,
                     (unsigned long long)f->bytes, (unsigned long long)f->skipped);
    else if (isatty(STDERR_FILENO))
        hf_cli_say(cli, "%llu file%s, %s", (unsigned long long)f->files, f->files == 1 ? "" : "s",
                   hf_human_size(f->bytes, size));
    return HF_EXIT_OK;
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_free char *id_from = NULL, *id_to = NULL;
    const char *from = args->v[0], *to = args->v[1];
    bool out = split_remote(from, &id_from, &from), in = split_remote(to, &id_to, &to);
    hf_auto_box struct hf_box box = {0};
    if (out == in)
        return hf_cli_usage(cli, args->verb, "one side must be in a sandbox, written ID:PATH, and one here");
    struct hf_files f = {.cli = cli, .box = &box, .user = hf_arg(args, "user")};
    int r = hf_box_open(cli, out ? id_from : id_to, &box, &err);
    if (r == 0) {
        hf_progress_start(&f.progress, cli, out ? "from %s" : "to %s", box.id);
        r = out ? download(&f, from, to, &err) : upload(&f, from, to, &err);
    }
    hf_files_done(&f);
    return r < 0 ? hf_cli_fail(cli, &err) : report(cli, &f, out && strcmp(to, "-") == 0);
}

const struct hf_verb hf_verb_sandbox_cp = {
    .name = "cp",
    .summary = "copy files and folders into or out of a sandbox",
    .args = "FROM TO",
    .min_args = 2,
    .max_args = 2,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = opts,
    .details = "One side is ID:PATH, the other a path here, or - for stdin or stdout. A relative PATH starts "
               "at the\n"
               "user's home. Folders are copied whole; into an existing folder a copy is put under its own "
               "name, and\n"
               "FROM/. copies the content alone. Contents are kept; modes, owners and times are not. Links "
               "to files\n"
               "become files, other links and special files are skipped and reported.",
    .examples = "holdfast sandbox cp report.csv $id:/home/user/\n"
                "holdfast sandbox cp src $id:work\n"
                "holdfast sandbox cp $id:/var/log/app.log .\n"
                "mysqldump db | holdfast sandbox cp - $id:db.sql",
    .run = run,
};
