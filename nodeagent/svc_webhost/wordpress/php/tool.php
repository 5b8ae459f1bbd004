<?php
/*
 * What the panel does in a WordPress site: run by the command line's PHP as the account of the site, never by a visitor.
 *
 * It reads one JSON object from its standard input, in which `do` names the work, `public` the folder of the site and
 * `nonce` the word by which the panel knows the line of the answer: a plugin may write whatever it likes beside it. The
 * answer is {"result": ...} or {"error": "..."}.
 *
 * WordPress is loaded without plugins and themes (WP_INSTALLING) wherever one that is broken should not be in the way.
 */

declare(strict_types=1);

const PREFIX = 'wp_';
const LINK = 'svc-login-';
const NEVER_COPIED = ['wp-config.php', '.htaccess'];

final class Refused extends Exception
{
}

$svc_order = json_decode(stream_get_contents(STDIN), true, 8, JSON_THROW_ON_ERROR);
$svc_answered = false;

function answer(array $what): void
{
    global $svc_order, $svc_answered;
    $svc_answered = true;
    while (ob_get_level() > 0) {
        ob_end_clean();
    }
    fwrite(STDOUT, "\n" . $svc_order['nonce'] . json_encode($what, JSON_INVALID_UTF8_SUBSTITUTE) . "\n");
}

// Whatever ends PHP before the answer is said: WordPress itself ends it where the database cannot be reached.
register_shutdown_function(static function (): void {
    global $svc_answered;
    if ($svc_answered) {
        return;
    }
    $last = error_get_last();
    $said = trim(strip_tags((string) (ob_get_level() > 0 ? ob_get_contents() : '')));
    answer(['error' => $said !== '' ? $said : ($last['message'] ?? 'PHP ended without an answer')]);
});
ob_start();

try {
    if (needs_wordpress($svc_order)) {
        begin($svc_order);
        // Here, since the variables that wp-settings.php sets are global ones.
        require $svc_order['public'] . '/wp-load.php';
    }
    answer(['result' => (object) work($svc_order)]);
} catch (Throwable $svc_error) {
    answer(['error' => $svc_error->getMessage(), 'refused' => $svc_error instanceof Refused]);
}

function needs_wordpress(array $order): bool
{
    $apart = ['place_files', 'set_maintenance', 'leave_cron', 'configured', 'configuration_of_copy'];
    return !in_array($order['do'], $apart, true);
}

/* WordPress is to take this for a visitor who asks for its front page. */
function begin(array $order): void
{
    $_SERVER = array_merge($_SERVER, [
        'HTTP_HOST' => $order['host'], 'SERVER_NAME' => $order['host'], 'SERVER_PROTOCOL' => 'HTTP/1.1',
        'REQUEST_METHOD' => 'GET', 'REMOTE_ADDR' => '127.0.0.1', 'HTTPS' => 'on',
        'REQUEST_URI' => '/', 'SCRIPT_NAME' => '/index.php', 'PHP_SELF' => '/index.php',
    ]);
    if ($order['do'] === 'install') {
        // For the account alone.
        write_whole($order['public'] . '/wp-config.php', $order['configuration'], 0600);
    }
    foreach (['wp-load.php', 'wp-config.php'] as $needed) {
        if (!file_exists($order['public'] . "/$needed")) {
            throw new Refused("the site has no $needed");
        }
    }
    if ($order['do'] === 'hand_over') {
        $file = $order['public'] . '/wp-config.php';
        write_whole($file, with_constants(file_get_contents($file), $order['constants']), fileperms($file) & 0777);
    }
    define('WP_DISABLE_FATAL_ERROR_HANDLER', true);
    if (!($order['with_plugins'] ?? false)) {
        define('WP_INSTALLING', true);
    }
}

function work(array $order): array
{
    return match ($order['do']) {
        'place_files' => place_files($order),
        'install' => install($order),
        'look' => look($order),
        'login' => login($order),
        'set_password' => set_password($order),
        'hand_over' => hand_over($order),
        'switch_plugin' => switch_plugin($order),
        'set_maintenance' => set_maintenance($order),
        'leave_cron' => leave_cron($order),
        'configured' => configured($order),
        'configuration_of_copy' => configuration_of_copy($order),
        'flush' => flush_caches(),
    };
}

/* The files of WordPress, as ordinary ones of the site: links are followed. Of the languages, the site's alone. */
function place_files(array $order): array
{
    $files = 0;
    $copy = static function (string $from, string $to) use (&$copy, &$files, $order): void {
        is_dir($to) || mkdir($to, 0755) || throw new Exception("the folder $to cannot be made");
        foreach (array_diff(scandir($from), ['.', '..']) as $name) {
            [$source, $target] = ["$from/$name", "$to/$name"];
            if ($from === $order['source'] && in_array($name, NEVER_COPIED, true)) {
                continue;
            }
            if (is_dir($source)) {
                $copy($source, $target);
                continue;
            }
            if (str_ends_with($from, '/wp-content/languages') && !is_of_language($name, $order['locale'])) {
                continue;
            }
            copy($source, $target) || throw new Exception("the file $target cannot be written");
            $files++;
        }
    };
    $copy($order['source'], $order['public']);
    @unlink($order['public'] . '/index.html');
    foreach (['/wp-content/uploads', '/wp-content/upgrade'] as $folder) {
        is_dir($order['public'] . $folder) || mkdir($order['public'] . $folder, 0755);
    }
    return ['files' => $files];
}

/* de_DE.mo, admin-de_DE.po, de_DE-<hash>.json: not those of de_DE_formal. */
function is_of_language(string $name, string $locale): bool
{
    return $locale !== '' && preg_match('/(^|-)' . preg_quote($locale, '/') . '[.-]/', $name) === 1;
}

/*
 * The tables. It begins anew: a site that is being created has nothing in its database but what an
 * attempt before has left half-made.
 */
function install(array $order): array
{
    global $wpdb;
    foreach ($wpdb->get_col('SHOW TABLES') as $table) {
        if (str_starts_with($table, PREFIX)) {
            $wpdb->query("DROP TABLE `$table`");
        }
    }
    wp_cache_flush();
    add_filter('pre_http_request', static fn () => new WP_Error('offline', 'nothing is fetched while it is installed'));
    // Else WordPress asks itself over HTTP whether they work, before it is served.
    add_filter('pre_option_permalink_structure', static fn () => $order['permalinks']);
    require_once ABSPATH . 'wp-admin/includes/upgrade.php';
    wp_install($order['title'], $order['login'], $order['email'], true, '', $order['password'], $order['locale']);
    remove_all_filters('pre_option_permalink_structure');
    update_option('permalink_structure', $order['permalinks']);
    global $wp_rewrite;
    $wp_rewrite->init();
    flush_rewrite_rules(false);
    user_named($order['login']);
    return ['version' => get_bloginfo('version')];
}

/* The mail that WordPress sends to a new administrator: the panel tells them. */
function wp_new_blog_notification(string ...$ignored): void
{
}

function look(array $order): array
{
    require_once ABSPATH . 'wp-admin/includes/plugin.php';
    $newer = (array) get_option('_site_transient_update_plugins');
    $plugins = [];
    foreach (get_plugins() as $file => $told) {
        $plugins[] = [
            'file' => $file,
            'name' => $told['Name'],
            'version' => $told['Version'],
            'active' => is_plugin_active($file),
            'update' => $newer['response'][$file]->new_version ?? null,
        ];
    }
    $newer = (array) get_option('_site_transient_update_themes');
    $themes = [];
    foreach (wp_get_themes() as $folder => $theme) {
        $themes[] = [
            'folder' => (string) $folder,
            'name' => (string) $theme->get('Name'),
            'version' => (string) $theme->get('Version'),
            'active' => $folder === get_option('stylesheet'),
            'update' => $newer['response'][$folder]['new_version'] ?? null,
        ];
    }
    $core = get_option('_site_transient_update_core');
    $update = null;
    foreach ($core->updates ?? [] as $offered) {
        if (($offered->response ?? '') === 'upgrade') {
            $update = $offered->current ?? null;
            break;
        }
    }
    return [
        'version' => get_bloginfo('version'),
        'update' => $update,
        'title' => html_entity_decode((string) get_option('blogname'), ENT_QUOTES),
        'language' => get_locale(),
        'debug' => (bool) WP_DEBUG,
        'maintenance' => file_exists(ABSPATH . '.maintenance'),
        'plugins' => $plugins,
        'themes' => $themes,
    ];
}

/*
 * A file that logs one visitor in and is gone with that. Its name is what the visitor has to know; that it can be
 * removed only once makes it one of a single use, and it refuses when its time is over.
 */
function login(array $order): array
{
    $user = user_named($order['login']);
    foreach (glob($order['public'] . '/' . LINK . '*.php') as $left) {
        if (filemtime($left) < time() - $order['seconds']) {
            @unlink($left);
        }
    }
    $name = LINK . bin2hex(random_bytes(32)) . '.php';
    $until = time() + $order['seconds'];
    // nginx has to be able to open it, though it hands it to PHP: nothing in it is secret but its name.
    write_whole($order['public'] . "/$name", str_replace(
        ['{user}', '{until}'],
        [(string) $user->ID, (string) $until],
        file_get_contents(__DIR__ . '/login.php')
    ), 0644);
    return ['path' => "/$name", 'login' => $user->user_login, 'until' => $until];
}

function set_password(array $order): array
{
    $user = user_named($order['login']);
    wp_set_password($order['password'], $user->ID);
    WP_Session_Tokens::get_instance($user->ID)->destroy_all();
    return ['login' => $user->user_login];
}

/* Whatever the owner before may know of it lets nobody in any more. */
function hand_over(array $order): array
{
    foreach (glob($order['public'] . '/' . LINK . '*.php') as $left) {
        unlink($left);
    }
    $found = get_users(['role' => 'administrator']);
    foreach ($found as $user) {
        wp_set_password(wp_generate_password(40), $user->ID);
        WP_Session_Tokens::get_instance($user->ID)->destroy_all();
        if (class_exists('WP_Application_Passwords')) {
            WP_Application_Passwords::delete_all_application_passwords($user->ID);
        }
        if ($user->user_login === $order['login']) {
            // A forgotten password is mailed to the new owner.
            global $wpdb;
            $wpdb->update($wpdb->users, ['user_email' => $order['email']], ['ID' => $user->ID]);
            clean_user_cache($user->ID);
        }
    }
    update_option('admin_email', $order['email']);
    return ['administrators' => count($found)];
}

/* Where the content is, if wp-config.php says it plainly: no code of the site is run to find out. */
function configured(array $order): array
{
    $tokens = token_get_all(configuration_file($order));
    $said = said_in($tokens);
    $found = [];
    foreach ($said as $place => $index) {
        $word = is_array($tokens[$index]) ? ltrim(strtolower($tokens[$index][1]), '\\') : '';
        // define ( 'DB_NAME' , 'value'  and  $table_prefix = 'value'
        $value = $tokens[$said[$place + ($word === 'define' ? 4 : 2)] ?? $index];
        if (!is_array($value) || $value[0] !== T_CONSTANT_ENCAPSED_STRING) {
            continue;
        }
        if ($word === 'define' && trim($tokens[$said[$place + 2]][1] ?? '', '\'"') === 'DB_NAME') {
            $found['database'] = substr($value[1], 1, -1);
        } elseif ($word === '$table_prefix' && $tokens[$said[$place + 1]] === '=') {
            $found['prefix'] = substr($value[1], 1, -1);
        }
    }
    foreach (['database' => 'DB_NAME', 'prefix' => '$table_prefix'] as $key => $name) {
        if (!isset($found[$key])) {
            throw new Refused("wp-config.php does not say $name as a string");
        }
    }
    return $found;
}

function configuration_of_copy(array $order): array
{
    // By whichever name and scheme a visitor came, where the owner has written an address of the site itself.
    $address = "((\$_SERVER['HTTPS'] ?? '') === 'on' ? 'https://' : 'http://') . (\$_SERVER['HTTP_HOST'] ?? "
        . var_export($order['host'], true) . ')';
    $written = array_map(static fn (string $value): string => var_export($value, true), $order['constants']);
    $needed = ['DB_NAME', 'DB_USER', 'DB_PASSWORD', 'DB_HOST'];
    $text = with_written(
        configuration_file($order), $written + ['WP_HOME' => $address, 'WP_SITEURL' => $address], $needed
    );
    return ['text' => without_cron($text)];
}

function configuration_file(array $order): string
{
    $text = @file_get_contents($order['public'] . '/wp-config.php');
    if ($text === false) {
        throw new Refused('the site has no wp-config.php');
    }
    return $text;
}

function flush_caches(): array
{
    wp_cache_flush();
    flush_rewrite_rules(false);
    return [];
}

function said_in(array $tokens): array
{
    return array_keys(array_filter($tokens, static function (array|string $token): bool {
        return !is_array($token) || !in_array($token[0], [T_WHITESPACE, T_COMMENT, T_DOC_COMMENT], true);
    }));
}

/* A wp-config.php in which these constants have other values. The rest of it stays as people have written it. */
function with_constants(string $configuration, array $values): string
{
    $written = array_map(static fn (string $value): string => var_export($value, true), $values);
    return with_written($configuration, $written, ['DB_PASSWORD']);
}

/* The same with values as PHP is written. */
function with_written(string $configuration, array $values, array $needed): string
{
    $tokens = token_get_all($configuration);
    $said = said_in($tokens);
    $missing = $values;
    foreach ($said as $place => $index) {
        // define ( 'NAME' , 'value'
        $word = $tokens[$index];
        $name = $tokens[$said[$place + 2] ?? $index];
        $value = $tokens[$said[$place + 4] ?? $index];
        if (!is_array($word) || ltrim(strtolower($word[1]), '\\') !== 'define' || !is_array($name) || !is_array($value)
            || $name[0] !== T_CONSTANT_ENCAPSED_STRING || $value[0] !== T_CONSTANT_ENCAPSED_STRING) {
            continue;
        }
        $constant = substr($name[1], 1, -1);
        if (array_key_exists($constant, $values)) {
            $tokens[$said[$place + 4]][1] = $values[$constant];
            unset($missing[$constant]);
        }
    }
    foreach ($needed as $name) {
        if (array_key_exists($name, $missing)) {
            throw new Refused("wp-config.php does not define $name as a string");
        }
    }
    return implode('', array_map(static fn (array|string $token): string => is_array($token) ? $token[1] : $token, $tokens));
}

/* Switching off leaves the plugin unread, so that one that breaks the site can be switched off. */
function switch_plugin(array $order): array
{
    require_once ABSPATH . 'wp-admin/includes/plugin.php';
    if (!array_key_exists($order['plugin'], get_plugins())) {
        throw new Refused("there is no plugin {$order['plugin']}");
    }
    if ($order['active']) {
        $failed = activate_plugin($order['plugin']);
        if (is_wp_error($failed)) {
            throw new Refused(strip_tags($failed->get_error_message()));
        }
    } else {
        deactivate_plugins([$order['plugin']]);
    }
    return ['active' => is_plugin_active($order['plugin'])];
}

function set_maintenance(array $order): array
{
    $flag = $order['public'] . '/.maintenance';
    if ($order['maintenance']) {
        // WordPress forgets a flag that is older than ten minutes: this one is always new.
        write_whole($flag, "<?php \$upgrading = time();\n", 0644);
    } elseif (file_exists($flag) && !unlink($flag)) {
        throw new Exception('the file .maintenance cannot be removed');
    }
    return ['maintenance' => file_exists($flag)];
}

/* What is due is done by a schedule of the panel, and not by visitors. A site that says something of it is left so. */
function leave_cron(array $order): array
{
    $file = $order['public'] . '/wp-config.php';
    $code = @file_get_contents($file);
    if ($code === false) {
        throw new Refused('the site has no wp-config.php');
    }
    $changed = without_cron($code);
    if ($changed !== $code) {
        write_whole($file, $changed, fileperms($file) & 0777);
    }
    return [];
}

function without_cron(string $code): string
{
    if (str_contains($code, 'DISABLE_WP_CRON')) {
        return $code;
    }
    $changed = preg_replace('/\A<\?php\s/', "$0define('DISABLE_WP_CRON', true);\n", $code, 1, $found);
    if ($found !== 1) {
        throw new Refused('the wp-config.php of the site does not begin with <?php');
    }
    return $changed;
}

function user_named(string $login): WP_User
{
    $user = get_user_by('login', $login);
    if ($user === false) {
        throw new Refused("there is no user $login");
    }
    return $user;
}

/* It is there whole or not at all, and at no time for more than it is meant for. */
function write_whole(string $path, string $content, int $mode): void
{
    $part = $path . '.' . bin2hex(random_bytes(8));
    umask(0077);
    $file = fopen($part, 'x');
    if ($file === false || fwrite($file, $content) !== strlen($content) || !fclose($file)
        || !chmod($part, $mode) || !rename($part, $path)) {
        @unlink($part);
        throw new Exception("the file $path cannot be written");
    }
    umask(0022);
}
