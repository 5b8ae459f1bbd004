<?php
/**
 * Provisioning module of WHMCS for machines of svc. docs/billing.md says how it is installed and set up.
 *
 * Each function here is one that WHMCS calls, named as WHMCS asks. They answer 'success' or what went wrong, for the
 * operator; nothing is kept here, since the controller knows every service by its WHMCS id. Every call may be repeated:
 * an order has one idempotency key for ever, and the controller takes what is so already for a success.
 */

if (!defined('WHMCS')) {
    die('This file cannot be accessed directly');
}

require_once __DIR__ . '/lib/Client.php';
require_once __DIR__ . '/lib/Service.php';

use Svc\Client;
use Svc\Refusal;
use Svc\Service;

function svc_MetaData(): array
{
    return [
        'DisplayName' => 'svc machines',
        'APIVersion' => '1.1',
        'RequiresServer' => true,
        'DefaultSSLPort' => '8443',
        'ServiceSingleSignOnLabel' => 'Open the control panel',
    ];
}

/** In this order they are configoption1 to configoption6. */
function svc_ConfigOptions(): array
{
    return [
        'Plan' => ['Type' => 'text', 'Size' => 25, 'Loader' => 'svc_PlanLoader', 'SimpleMode' => true],
        'Image' => ['Type' => 'text', 'Size' => 25, 'Loader' => 'svc_ImageLoader', 'SimpleMode' => true],
        'Access' => [
            'Type' => 'dropdown',
            'Options' => [
                'user_sudo' => 'The image\'s own user, with sudo',
                'root_password' => 'root, by password',
                'root_key' => 'root, by key',
            ],
            'Default' => 'user_sudo',
            'SimpleMode' => true,
        ],
        'Suspension' => [
            'Type' => 'dropdown',
            'Options' => [
                '' => 'as the controller is set',
                'power_off' => 'switch the machine off',
                'network_isolate' => 'keep it running without network',
            ],
        ],
        'Termination' => ['Type' => 'yesno', 'Description' => 'destroys the disks as well'],
        'User data' => ['Type' => 'textarea', 'Rows' => 6, 'Description' => 'for cloud-init of the first boot: a script, or #cloud-config'],
    ];
}

function svc_PlanLoader(array $params): array
{
    return array_column(svc_client($params)->get('/catalogue')['plans'], 'name', 'slug');
}

function svc_ImageLoader(array $params): array
{
    return array_column(svc_client($params)->get('/catalogue')['images'], 'name', 'slug');
}

function svc_TestConnection(array $params): array
{
    try {
        $ping = svc_client($params)->get('/ping');
    } catch (Refusal $refusal) {
        return ['success' => false, 'error' => $refusal->getMessage()];
    }
    return $ping['ready'] ? ['success' => true, 'error' => ''] : ['success' => false, 'error' => implode(' ', $ping['problems'])];
}

function svc_CreateAccount(array $params): string
{
    return svc_told(function () use ($params) {
        $made = svc_service($params)->order(svc_order($params));
        if ($made !== null) {
            svc_keep($params, $made);
        }
    });
}

function svc_SuspendAccount(array $params): string
{
    return svc_told(function () use ($params) {
        $how = ['mode' => $params['configoption4'] ?: null, 'reason' => $params['suspendreason'] ?: null];
        svc_service($params)->ask('suspend', array_filter($how));
    });
}

function svc_UnsuspendAccount(array $params): string
{
    return svc_told(function () use ($params) {
        svc_service($params)->ask('unsuspend');
    });
}

function svc_TerminateAccount(array $params): string
{
    return svc_told(function () use ($params) {
        $service = svc_service($params);
        if ($service->current()[1] !== null) {
            $service->ask('terminate', ['confirm' => true, 'destroy_disks' => $params['configoption5'] === 'on']);
        }
    });
}

function svc_ChangePackage(array $params): string
{
    return svc_told(function () use ($params) {
        $service = svc_service($params);
        if ($service->existing()['plan'] !== $params['configoption1']) {
            $service->ask('change-plan', ['plan_slug' => $params['configoption1'], 'reboot' => true]);
        }
    });
}

function svc_ChangePassword(array $params): string
{
    return svc_told(function () use ($params) {
        svc_service($params)->ask('reset-password', ['password' => $params['password']]);
    });
}

function svc_ServiceSingleSignOn(array $params): array
{
    try {
        $link = svc_service($params)->ask('sso');
    } catch (Refusal $refusal) {
        return ['success' => false, 'errorMsg' => $refusal->getMessage()];
    }
    return ['success' => true, 'redirectTo' => $link['url']];
}

/** The traffic of this month, into the columns that WHMCS bills by: both are MB there. */
function svc_UsageUpdate(array $params): void
{
    $client = svc_client($params);
    $hostings = \WHMCS\Database\Capsule::table('tblhosting')
        ->where('server', $params['serverid'])
        ->whereIn('domainstatus', ['Active', 'Suspended'])
        ->get();
    foreach ($hostings as $hosting) {
        try {
            $service = (new Service($client, 'whmcs', (string) (int) $hosting->id))->existing();
            $usage = $client->get("/services/{$service['id']}/usage");
        } catch (Refusal $refusal) {
            // One service that has none does not keep the others from being counted.
            logModuleCall('svc', 'UsageUpdate', $hosting->id, $refusal->getMessage());
            continue;
        }
        \WHMCS\Database\Capsule::table('tblhosting')->where('id', $hosting->id)->update([
            'bwusage' => intdiv($usage['received_bytes'] + $usage['sent_bytes'], 1024 * 1024),
            'bwlimit' => intdiv($usage['traffic']['allowance_bytes'] ?? 0, 1024 * 1024),
            'disklimit' => 1024 * (int) $usage['disk_gib'],
            'lastupdate' => date('Y-m-d H:i:s'),
        ]);
    }
}

function svc_ClientArea(array $params): array
{
    $variables = ['service' => null, 'problem' => null];
    try {
        $variables['service'] = svc_service($params)->existing();
    } catch (Refusal $refusal) {
        // What the operator reads in the module log is no customer's business.
        logModuleCall('svc', 'ClientArea', $params['serviceid'], $refusal->getMessage());
        $variables['problem'] = 'The state of the machine is not known just now.';
    }
    return ['templatefile' => 'clientarea', 'vars' => $variables];
}

/** From what WHMCS knows of a server: the token is its password, the authority its access hash. */
function svc_client(array $params): Client
{
    $host = (string) ($params['serverhostname'] ?: $params['serverip']);
    $port = (int) ($params['serverport'] ?? 0) ?: 8443;
    $hash = trim((string) ($params['serveraccesshash'] ?? ''));
    return new Client("https://$host:$port", trim((string) $params['serverpassword']), $hash);
}

function svc_service(array $params): Service
{
    return new Service(svc_client($params), 'whmcs', (string) (int) $params['serviceid']);
}

/** The order of a machine, as the controller takes it. The customer's choices come before the product's. */
function svc_order(array $params): array
{
    $client = $params['clientsdetails'];
    $chosen = $params['configoptions'] ?? [];
    $fields = $params['customfields'] ?? [];
    $name = trim((string) $params['domain']);
    $keys = array_values(array_filter(array_map('trim', explode("\n", (string) ($fields['SSH keys'] ?? '')))));
    $order = [
        'customer_email' => $client['email'],
        'customer_name' => trim("{$client['firstname']} {$client['lastname']}"),
        'customer_company' => $client['companyname'] ?? '',
        'name' => $name !== '' ? $name : 'service-' . (int) $params['serviceid'],
        'plan_slug' => $params['configoption1'],
        'image_slug' => $chosen['Image'] ?? $params['configoption2'],
        'access_mode' => $params['configoption3'] ?: null,
        'ssh_keys' => $keys,
        'password' => $params['configoption3'] !== 'root_key',
        'user_data' => str_replace("\r\n", "\n", (string) ($params['configoption6'] ?? '')),
    ];
    return array_filter($order, function ($value) {
        return $value !== null && $value !== '' && $value !== [];
    });
}

/** Keep in WHMCS how the customer gets into the machine. */
function svc_keep(array $params, array $made): void
{
    $known = ['Username' => $made['user'], 'Dedicated IP' => $made['vm']['primary_ip']];
    if ($made['password'] !== null) {
        $known['Password'] = $made['password'];
    }
    $params['model']->serviceProperties->save($known);
}

/** What WHMCS is told of a call that answers nothing. */
function svc_told(callable $call): string
{
    try {
        $call();
    } catch (Refusal $refusal) {
        return $refusal->getMessage();
    }
    return 'success';
}
